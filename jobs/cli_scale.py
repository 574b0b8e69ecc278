"""The verb scale: how efficiency falls as nodes are added."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from jobs.cli_lab import MOST, json_option
from jobs.cli_making import (
    RUNS,
    also_algorithm_option,
    backend_option,
    making_of,
    privilege_option,
)
from jobs.cli_run import assignments, load_jobs

if TYPE_CHECKING:
    from jobs.scale.plan import ScalePlan
    from jobs.scale.sizes import LabChoice, ScaleResult, Turns

SCHEMA = 1
FAILED, STOPPED = 1, 130


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option("--nodes", required=True, help='Numbers of nodes to try, such as "1 2 4".')
@click.option("--cluster", default="2x2", help="Gives the ranks of a node, and its links.")
@click.option("--rate", help="Limit of the links between nodes, such as 200mbit or 25MB/s.")
@click.option("--scaling", default="weak", help="weak: a rank keeps its batch; strong: a step.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Such as train.lr=0.01.")
@click.option("--data", type=str, help="File or folder to train on: data.path.")
@also_algorithm_option
@click.option("--rounds", type=click.IntRange(1, MOST), help="Rounds of turns at each size.")
@click.option("--steps", type=click.IntRange(1, MOST), help="Counted steps of a turn.")
@backend_option
@privilege_option
@json_option
def scale(
    jobs: tuple[str, ...],
    nodes: str,
    cluster: str,
    rate: str | None,
    scaling: str,
    sets: tuple[str, ...],
    data: str | None,
    algorithm: str | None,
    rounds: int | None,
    steps: int | None,
    backend: str,
    privilege: str,
    as_json: bool,
) -> int:
    """Train JOBS at several numbers of nodes, each on a lab of its own, and on one rank alone."""
    from cluster.backends import choose_backend
    from cluster.spec import load_cluster
    from jobs.rounds.launcher import ROUNDS, TURN_STEPS
    from jobs.scale.plan import plan_scale
    from jobs.scale.sizes import LabChoice, Turns

    settings = assignments(sets, None, data)
    specs = load_jobs(jobs, settings, algorithm)
    plan = plan_scale(specs, load_cluster(cluster, rate), nodes, scaling)
    _check_inputs(plan)
    making = making_of(backend, privilege)
    choice = LabChoice(choose_backend(making), making)
    turns = Turns(rounds or ROUNDS, steps or TURN_STEPS)
    return _run(plan, choice, turns, _typed(click.get_current_context()), as_json)


def _typed(context: click.Context) -> dict[str, str]:
    """The variables of `make scale` that say what was typed, and no others."""
    typed = {}
    for name in (str(parameter.name) for parameter in context.command.params):
        if name != "as_json" and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params[name]
            text = " ".join(value) if isinstance(value, tuple) else str(value)
            typed["SET" if name == "sets" else name.upper()] = text
    return typed


def _check_inputs(plan: "ScalePlan") -> None:
    from jobs.inputs import check_inputs

    for size in plan.sizes:
        for job in plan.jobs_at(size):
            check_inputs(job, size.nodes, size.ranks_per_node)


def _run(
    plan: "ScalePlan",
    choice: "LabChoice",
    turns: "Turns",
    typed: Mapping[str, str],
    as_json: bool,
) -> int:
    from jobs.report.scale_live import LiveScale
    from jobs.report.scale_screen import scale_header
    from jobs.report.terminal import error_console, output_console, show
    from jobs.runinfo import num_cores
    from jobs.scale.sizes import scale as run_sizes

    console = error_console() if as_json else output_console()
    show(console, scale_header(plan, choice.chosen, turns, num_cores(), console.width))
    live = LiveScale(console, len(plan.sizes))
    try:
        result = run_sizes(plan, choice, turns, RUNS, live)
    finally:
        live.stop()
    if as_json:
        click.echo(json.dumps(_answer(result)))
    else:
        _show_result(plan, result, typed)
    return _exit_code(result)


def _answer(result: "ScaleResult") -> dict[str, Any]:
    """The files' document; where there are none, why."""
    from jobs.summary import error_json

    document = result.files and result.files.folder.read("scale.json")
    if document:
        return document
    error = error_json(result.error) if result.error else None
    return {"schema": SCHEMA, "error": error}


def _show_result(plan: "ScalePlan", result: "ScaleResult", typed: Mapping[str, str]) -> None:
    from jobs.report.errors import error_screen
    from jobs.report.scale_screen import closing_screen, files_lines, next_lines
    from jobs.report.terminal import error_console, output_console, show

    console = output_console()
    if result.rows:
        show(console, closing_screen(plan, result.rows, console.width))
    if result.error:
        errors = error_console()
        show(errors, error_screen(result.error, errors.width))
    elif result.files:
        show(console, next_lines(plan, typed, console.width))
    if result.files:
        show(console, files_lines(result.files.folder.run_id, console.width))


def _exit_code(result: "ScaleResult") -> int:
    from jobs.errors import RunStopped

    if result.error is None:
        return 0
    return STOPPED if isinstance(result.error, RunStopped) else FAILED
