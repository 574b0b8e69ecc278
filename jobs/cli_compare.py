"""The verb compare: the same training, other ways of reducing gradients."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_lab import MOST, json_option
from jobs.cli_making import also_algorithm_option
from jobs.cli_site import SiteAsked, opened_site, site_options
from jobs.verbs import CommandLineError

if TYPE_CHECKING:
    from cluster.site import Site
    from jobs.compare.comparison import ComparedRun, Comparison
    from jobs.compare.gate import GateResult
    from jobs.conclude import RunResult
    from jobs.errors import JobError
    from jobs.rounds.launcher import TurnsResult
    from jobs.spec import JobSpec

RUNS = Path("runs")
FAILED, STOPPED = 1, 130


@dataclass(frozen=True)
class Asked:
    """What is asked of every comparison."""

    base: str | None
    limit: float | None
    allow_different: bool
    as_json: bool


@click.command()
@click.argument("jobs", nargs=-1)
@click.option("--runs", "finished", help='Finished runs instead: "latest 20261130-1104-hier-...".')
@click.option("--base", help="What the others are held against: native where it is one of them.")
@click.option("--max-slowdown", help="Exit code 1 where a job is slower by more, such as 5%.")
@click.option("--rounds", type=click.IntRange(1, MOST), help="How often each job has a turn: 3.")
@click.option("--steps", type=click.IntRange(1, MOST), help="Counted steps of a turn: 10.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Such as train.lr=0.01.")
@click.option("--data", type=str, help="File or folder to train on: data.path.")
@also_algorithm_option
@click.option("--rate", help="Refuse to run unless the lab's links have this rate.")
@click.option("--allow-different", is_flag=True, help="Also what is not the same training.")
@site_options
@click.option("--lab", "lab_name", help="Name of the lab.")
@json_option
def compare(
    jobs: tuple[str, ...],
    finished: str | None,
    base: str | None,
    max_slowdown: str | None,
    allow_different: bool,
    as_json: bool,
    **run_options: Any,
) -> int:
    """Train JOBS in turn within one set of ranks, and say how many times as fast each is."""
    from jobs.compare.gate import parse_limit

    limit = None if max_slowdown is None else parse_limit(max_slowdown)
    asked = Asked(base, limit, allow_different, as_json)
    if finished is not None:
        _require_nothing_to_run(jobs, run_options)
        return _compare_finished(finished.split(), asked)
    return _compare_jobs(jobs, run_options, asked)


def _require_nothing_to_run(jobs: Sequence[str], run_options: Mapping[str, Any]) -> None:
    variables = {"sets": "SET", "lab_name": "LAB"}
    asked = {"jobs": jobs, **run_options}
    typed = [name for name, value in asked.items() if value not in (None, ())]
    given = [variables.get(name, name.upper()) for name in typed]
    if given:
        raise CommandLineError(
            f"RUNS together with {', '.join(given)}",
            rule="finished runs are compared as they are; nothing runs",
            fix="leave RUNS out, or the others",
        )


def _compare_finished(names: Sequence[str], asked: Asked) -> int:
    from jobs.compare.rules import require_same, run_differences
    from jobs.compare.runs import find_runs

    found = find_runs(RUNS, names)
    labels = [each.label for each in found]
    _require_several(labels, "RUNS")
    base = _base(asked.base, labels, [str(each.summary["algorithm"]) for each in found])
    differences = run_differences(found)
    if not asked.allow_different:
        require_same(differences, labels)
    return _tell(found, base, differences, asked)


def _compare_jobs(jobs: Sequence[str], run_options: Mapping[str, Any], asked: Asked) -> int:
    from jobs.cli_run import require_data, require_rate
    from jobs.compare.rules import job_differences, require_same
    from jobs.compare.runs import labels as own_labels

    specs = _load(jobs, run_options)
    _require_several([spec.name for spec in specs], "JOBS")
    labels = own_labels([spec.name for spec in specs])
    base = _base(asked.base, labels, [spec.ddp.algorithm for spec in specs])
    named = [
        (label, spec.model_dump(mode="json")) for label, spec in zip(labels, specs, strict=True)
    ]
    differences = job_differences(named)
    if not asked.allow_different:
        require_same(differences, labels)

    def check(site: "Site") -> None:
        require_rate(site, run_options["rate"], f'compare JOBS="{" ".join(jobs)}"')
        for spec in specs:
            require_data(spec, site.spec.nodes, site.spec.ranks_per_node)

    where = SiteAsked.of(run_options["lab_name"], run_options)
    with opened_site(where, check, asked.as_json) as site:
        result = _take_turns(specs, labels, site, run_options, alike=not differences, asked=asked)
    return _conclude(result, labels, base, differences, asked)


def _require_several(names: Sequence[str], variable: str) -> None:
    if len(names) < 2:
        raise CommandLineError(
            f"compare has {'nothing' if not names else names[0] + ' alone'} to compare",
            rule="two jobs, or finished runs, at least",
            fix=f'{variable}="ring hier"' if variable == "JOBS" else "make runs lists them",
        )


def _load(jobs: Sequence[str], run_options: Mapping[str, Any]) -> "list[JobSpec]":
    from jobs.cli_run import assignments, load_jobs

    settings = assignments(run_options["sets"], None, run_options["data"])
    if any(setting.partition("=")[0].strip() == "train.steps" for setting in settings):
        raise CommandLineError(
            "train.steps is no setting of a comparison",
            rule="a job trains STEPS steps in each of ROUNDS turns",
            fix="STEPS=20, or ROUNDS=5",
        )
    return load_jobs(jobs, settings, run_options["algorithm"])


def _base(asked: str | None, labels: Sequence[str], algorithms: Sequence[str]) -> str:
    """The label of the base. Raises CommandLineError for one that is not compared."""
    if asked is None:
        return labels[algorithms.index("native")] if "native" in algorithms else labels[0]
    if asked not in labels:
        raise CommandLineError(
            f"BASE={asked}",
            rule=f"is one of what is compared: {', '.join(labels)}",
            fix=f"BASE={labels[0]}",
        )
    return asked


def _take_turns(
    specs: "Sequence[JobSpec]",
    labels: Sequence[str],
    site: "Site",
    run_options: Mapping[str, Any],
    *,
    alike: bool,
    asked: Asked,
) -> "TurnsResult":
    from jobs.report.compare_live import LiveTurns
    from jobs.report.site_words import site_words
    from jobs.report.terminal import error_console, output_console
    from jobs.rounds.launcher import ROUNDS, TURN_STEPS, take_turns

    rounds = run_options["rounds"] or ROUNDS
    if asked.limit is not None and rounds < 2:
        raise CommandLineError(
            "MAX_SLOWDOWN with ROUNDS=1",
            rule="noise is told from a slowdown by several rounds",
            fix="ROUNDS=3",
        )
    console = error_console() if asked.as_json else output_console()
    live = LiveTurns(console, labels, site_words(site), alike=alike)
    turn_steps = run_options["steps"] or TURN_STEPS
    return take_turns(specs, site, RUNS, live, rounds=rounds, turn_steps=turn_steps)


def _conclude(
    result: "TurnsResult",
    labels: Sequence[str],
    base: str,
    differences: Sequence[str],
    asked: Asked,
) -> int:
    """Compares what has just run, unless it failed or somebody changed the links meanwhile."""
    from jobs.compare.rules import require_same, run_differences
    from jobs.compare.runs import of_result
    from jobs.errors import CompareError

    if result.error:
        return _tell_failure(result.results, labels, result.error, asked)
    found = [of_result(label, each) for label, each in zip(labels, result.results, strict=True)]
    differences = differences or run_differences(found)
    try:
        if not asked.allow_different:
            require_same(differences, labels)
    except CompareError as exc:
        return _tell_failure(result.results, labels, exc, asked)
    return _tell(found, base, differences, asked)


def _tell_failure(
    results: "Sequence[RunResult]",
    labels: Sequence[str],
    error: "JobError",
    asked: Asked,
) -> int:
    from jobs.compare.files import comparison_json, write_bundle
    from jobs.errors import RunStopped
    from jobs.report.compare_screen import kept_lines
    from jobs.report.errors import error_screen
    from jobs.report.terminal import error_console, show

    summaries = [each.summary for each in results]
    document = comparison_json(summaries, labels, None, (), None, error)
    folder = write_bundle(RUNS, results[0].run, document, None)
    if asked.as_json:
        click.echo(json.dumps(folder.read("compare.json")))
    else:
        console = error_console()
        show(console, error_screen(error, console.width))
        show(console, kept_lines([str(each["run_id"]) for each in summaries], console.width))
    return STOPPED if isinstance(error, RunStopped) else FAILED


def _tell(
    found: "Sequence[ComparedRun]", base: str, differences: Sequence[str], asked: Asked
) -> int:
    """The comparison of runs that came to their end, on the screen or as JSON."""
    from cluster.lab import list_labs
    from jobs.compare.comparison import compare as held_together
    from jobs.compare.files import comparison_json, write_bundle
    from jobs.report.compare_screen import closing_screen, next_lines
    from jobs.report.errors import error_screen
    from jobs.report.terminal import error_console, output_console, show

    comparison = held_together(found, base, alike=not differences)
    gated = _gated(comparison, asked.limit)
    error = _first_fault(comparison, gated)
    summaries, labels = [each.summary for each in found], [each.label for each in found]
    document = comparison_json(summaries, labels, comparison, differences, gated, error)
    folder = write_bundle(RUNS, found[0].run, document, comparison)
    if asked.as_json:
        click.echo(json.dumps(folder.read("compare.json")))
        return FAILED if error else 0
    console = output_console()
    show(console, closing_screen(comparison, gated, differences, console.width))
    show(console, next_lines(comparison, folder.run_id, differences, list_labs(), console.width))
    if error:
        errors = error_console()
        show(errors, error_screen(error, errors.width))
    return FAILED if error else 0


def _gated(comparison: "Comparison", limit: float | None) -> "GateResult | None":
    from jobs.compare.gate import GateResult, gates

    return None if limit is None else GateResult(limit, gates(comparison, limit))


def _first_fault(comparison: "Comparison", gated: "GateResult | None") -> "JobError | None":
    from jobs.compare.gate import failed_gate
    from jobs.errors import RunFailed

    if comparison.faults:
        return RunFailed(
            "; ".join(comparison.faults),
            rule="jobs that add the same gradients train the same model",
            fix="keep the run folders: they show a bug in reducing gradients",
        )
    return failed_gate(gated, comparison.base) if gated else None
