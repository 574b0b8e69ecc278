"""The verb scale: how efficiency falls as nodes are added."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
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
from jobs.cli_site import RAY, SiteAsked, on_ray
from jobs.verbs import CommandLineError

if TYPE_CHECKING:
    from cluster.backends import Chosen
    from cluster.site import Site
    from cluster.spec import ClusterSpec
    from jobs.scale.places import Places
    from jobs.scale.plan import ScalePlan, Size
    from jobs.scale.sizes import ScaleResult, Turns

SCHEMA = 1
FAILED, STOPPED = 1, 130


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option("--nodes", required=True, help='Numbers of nodes to try, such as "1 2 4".')
@click.option("--cluster", help="Gives the ranks of a node, and its links: 2x2.")
@click.option("--rate", help="Limit of the links between nodes, such as 200mbit or 25MB/s.")
@click.option("--scaling", default="weak", help="weak: a rank keeps its batch; strong: a step.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Such as train.lr=0.01.")
@click.option("--data", type=str, help="File or folder to train on: data.path.")
@also_algorithm_option
@click.option("--rounds", type=click.IntRange(1, MOST), help="Rounds of turns at each size.")
@click.option("--steps", type=click.IntRange(1, MOST), help="Counted steps of a turn.")
@backend_option
@privilege_option
@click.option("--lab", "lab_name", help="With BACKEND=ray: the lab whose Ray cluster it is.")
@on_ray
@json_option
def scale(
    jobs: tuple[str, ...],
    nodes: str,
    scaling: str,
    sets: tuple[str, ...],
    data: str | None,
    algorithm: str | None,
    rounds: int | None,
    steps: int | None,
    as_json: bool,
    **where: Any,
) -> int:
    """Train JOBS at several numbers of nodes, each on a lab of its own, and on one rank alone."""
    from jobs.rounds.launcher import ROUNDS, TURN_STEPS
    from jobs.scale.plan import plan_scale
    from jobs.scale.sizes import Turns

    settings = assignments(sets, None, data)
    specs = load_jobs(jobs, settings, algorithm)
    cluster, places, told = (_on_ray if where["backend"] == RAY else _in_labs)(where)
    plan = plan_scale(specs, cluster, nodes, scaling)
    _check_inputs(plan)
    turns = Turns(rounds or ROUNDS, steps or TURN_STEPS)
    return _run(plan, places, told, turns, as_json)


def _in_labs(where: Mapping[str, Any]) -> "tuple[ClusterSpec, Places, Chosen]":
    """The cluster that sizes are made of, a lab for each, and how it is made."""
    from cluster.backends import choose_backend
    from cluster.spec import load_cluster
    from jobs.scale.places import LabChoice

    SiteAsked.of(None, {**where, "backend": None})  # what says something of Ray is refused
    if where["lab_name"] is not None:
        raise CommandLineError(
            f"LAB={where['lab_name']} without BACKEND=ray",
            rule="every size is a lab of its own",
            fix="leave LAB out",
        )
    cluster = load_cluster("2x2" if where["cluster"] is None else where["cluster"], where["rate"])
    making = making_of(where["backend"], where["privilege"])
    chosen = choose_backend(making)
    return cluster, LabChoice(chosen, making), chosen


def _on_ray(where: Mapping[str, Any]) -> "tuple[ClusterSpec, Places, Site]":
    """The whole Ray cluster, a part of it for each size, and the whole as it is told."""
    from cluster.rayhosts.attach import attached
    from jobs.scale.places import OnCluster

    for name, usual in (("cluster", None), ("rate", None), ("privilege", "none")):
        if where[name] != usual:
            raise CommandLineError(
                f"{name.upper()}={where[name]} with BACKEND=ray",
                rule="machines that others brought up are taken as they are",
                fix="leave it out; RANKS_PER_NODE says how many ranks a node has",
            )
    asked = SiteAsked.of(where["lab_name"], where)
    with attached(asked.ray()) as whole:
        cluster = whole.spec

    def attach(size: "Size") -> "AbstractContextManager[Site]":
        return attached(asked.ray(nodes=size.nodes, ranks_per_node=size.ranks_per_node))

    return cluster, OnCluster(attach), whole


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
    places: "Places",
    told: "Chosen | Site",
    turns: "Turns",
    as_json: bool,
) -> int:
    from jobs.report.scale_live import LiveScale
    from jobs.report.scale_screen import scale_header
    from jobs.report.terminal import error_console, output_console, show
    from jobs.runinfo import num_cores
    from jobs.scale.sizes import scale as run_sizes

    console = error_console() if as_json else output_console()
    show(console, scale_header(plan, told, turns, num_cores(), console.width))
    live = LiveScale(console, len(plan.sizes))
    try:
        result = run_sizes(plan, places, turns, RUNS, live)
    finally:
        live.stop()
    if as_json:
        click.echo(json.dumps(_answer(result)))
    else:
        _show_result(plan, result, _typed(click.get_current_context()))
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
