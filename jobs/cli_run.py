"""The verbs about runs: run, runs, runs-clean."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_lab import json_option, lab_option
from jobs.cli_making import RUNS, algorithm_option
from jobs.cli_site import SiteAsked, opened_site, site_options
from jobs.errors import DataError

if TYPE_CHECKING:
    from cluster.site import Site
    from jobs.conclude import RunResult
    from jobs.runfolder import RunFolder
    from jobs.spec import JobSpec

SCHEMA = 1
FAILED, STOPPED = 1, 130


@click.command()
@click.argument("job")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Such as train.lr=0.01.")
@click.option("--steps", type=int, help="Measured steps: train.steps.")
@click.option("--data", type=str, help="File or folder to train on: data.path.")
@algorithm_option
@click.option("--rate", help="Refuse to run unless the lab's links have this rate.")
@click.option("--print-config", is_flag=True, help="Print the resolved job and do nothing.")
@site_options
@lab_option
@json_option
def run(
    job: str,
    sets: tuple[str, ...],
    steps: int | None,
    data: str | None,
    algorithm: str | None,
    rate: str | None,
    print_config: bool,
    lab_name: str,
    as_json: bool,
    **site_asked: Any,
) -> int:
    """Train JOB (a job of the catalog, or a file) on the lab; say what the network cost."""
    from jobs.spec import load_job

    spec = load_job(job, assignments(sets, steps, data, algorithm))
    if print_config:
        click.echo(_config(spec, as_json), nl=False)
        return 0

    def check(site: "Site") -> None:
        require_rate(site, rate, f"run JOB={job}")
        require_data(spec, site.spec.nodes, site.spec.ranks_per_node)

    with opened_site(SiteAsked.of(lab_name, site_asked), check, as_json) as site:
        return _run(spec, site, as_json)


@click.command()
@json_option
def runs(as_json: bool) -> None:
    """List all runs, oldest first."""
    from jobs.report.runs_table import runs_table
    from jobs.report.terminal import output_console, show
    from jobs.runfolder import list_runs

    rows = [_row(folder) for folder in list_runs(RUNS)]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "runs": rows}))
        return
    console = output_console()
    show(console, runs_table(rows, console.width))


@click.command("runs-clean")
@click.option("--keep", type=int, required=True, help="How many of the last runs stay.")
@json_option
def runs_clean(keep: int, as_json: bool) -> None:
    """Remove all runs, and benches, but the last KEEP; running ones, and others' folders, stay."""
    from jobs.bundles import clean_benches, clean_bundles
    from jobs.runfolder import clean_runs, list_runs

    removed = [folder.run_id for folder in clean_runs(RUNS, keep)]
    others = [*clean_bundles(RUNS), *clean_benches(RUNS, keep)]
    bundles = [folder.run_id for folder in others]
    kept = [folder.run_id for folder in list_runs(RUNS)]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "removed": removed, "kept": kept}))
        return
    for run_id in (*removed, *bundles):
        click.echo(f"  removed  runs/{run_id}")
    click.echo(f"{len(removed)} removed, {len(kept)} kept.    next    make runs")


def assignments(
    sets: Sequence[str], steps: int | None, data: str | None, algorithm: str | None = None
) -> list[str]:
    """What the options say about a job, as load_job takes it."""
    settings = list(sets)
    if algorithm is not None:
        settings.append(f"ddp.algorithm={json.dumps(algorithm)}")
    if steps is not None:
        settings.append(f"train.steps={steps}")
    if data is not None:
        if not data.strip():
            raise DataError(
                "DATA is empty",
                rule="it names a file, or a folder of files, to train on",
                fix="leave DATA out for Python's own library, or name a file",
            )
        # as text, whatever it looks like; nodes do not share our working folder
        settings.append(f"data.path={json.dumps(str(Path(data).expanduser().absolute()))}")
    return settings


def _config(spec: "JobSpec", as_json: bool) -> str:
    import yaml

    document = spec.model_dump(mode="json")
    if as_json:
        return json.dumps(document) + "\n"
    return yaml.safe_dump(document, sort_keys=False)


def require_rate(site: "Site", rate: str | None, command: str) -> None:
    """Raises LaunchError where the lab runs at another rate; `command` is what was typed."""
    from cluster.units import format_rate, parse_optional_rate
    from jobs.errors import LaunchError

    if rate is None:
        return
    lab = site.underlay
    if lab is None:
        raise LaunchError(
            f"RATE={rate} where no lab limits the links",
            rule="machines that others brought up are taken as they are",
            fix="leave RATE out",
        )
    here = lab.spec.links.inter_node.rate_bits_per_s
    nodes = [lab.spec.links_of(name).inter_node for name in lab.spec.node_names]
    if {node.rate_bits_per_s for node in nodes} == {parse_optional_rate(rate)}:
        return
    own = f", {', '.join(lab.spec.overrides)} at its own" if lab.spec.overrides else ""
    option = "" if lab.name == "default" else f" LAB={lab.name}"
    raise LaunchError(
        f'RATE={rate}, but lab "{lab.name}" runs at {format_rate(here)}{own}.',
        rule=f"{command.split()[0]} takes the lab as it is: no result may carry a rate that was "
        "not applied and measured",
        fix=f"make link NODE=all RATE={rate}{option} && make {command}{option}        "
        "(changes and measures it, 6 s)",
    )


def load_jobs(
    jobs: Sequence[str], settings: Sequence[str], algorithm: str | None
) -> "list[JobSpec]":
    """Jobs for one comparison; with an algorithm also the first of them with it in place."""
    from jobs.owncode import job_name
    from jobs.spec import load_job

    specs = [load_job(job, settings) for job in jobs]
    if algorithm is not None and jobs:
        own = (f"ddp.algorithm={json.dumps(algorithm)}", f"name={json.dumps(job_name(algorithm))}")
        specs.append(load_job(jobs[0], [*settings, *own]))
    return specs


def require_data(spec: "JobSpec", nodes: int, ranks_per_node: int) -> None:
    """Raises DataError, ModelError or JobSpecError before anything is started."""
    from jobs.inputs import check_inputs

    check_inputs(spec, nodes, ranks_per_node)


def _run(spec: "JobSpec", site: "Site", as_json: bool) -> int:
    from jobs.launch import launch
    from jobs.owncode import algorithm_summary
    from jobs.report.live import LiveRun
    from jobs.report.site_words import site_words
    from jobs.report.terminal import error_console, output_console

    console = error_console() if as_json else output_console()
    summary = algorithm_summary(spec.ddp)
    result = launch(spec, site, RUNS, LiveRun(console, site_words(site), summary))
    if as_json:
        click.echo(json.dumps(result.summary))
    else:
        show_result(result)
    return exit_code(result)


def exit_code(result: "RunResult") -> int:
    """Of a command that ran this, and nothing else."""
    from jobs.errors import RunStopped

    if result.error is None:
        return 0
    return STOPPED if isinstance(result.error, RunStopped) else FAILED


def show_result(result: "RunResult") -> None:
    """What the run came to, and where its files are; on standard error why it failed."""
    from jobs.report.errors import error_screen
    from jobs.report.run_screen import closing_screen, files_line
    from jobs.report.terminal import error_console, output_console, show

    size_bytes = result.folder.size_bytes()
    if result.error is None:
        console = output_console()
        prediction = result.folder.read("prediction.json")
        show(
            console,
            closing_screen(
                result.run, result.figures, result.summary, prediction, size_bytes, console.width
            ),
        )
        return
    console = error_console()
    show(console, error_screen(result.error, console.width))
    show(console, files_line(result.run, size_bytes, console.width))


def _row(folder: "RunFolder") -> dict[str, Any]:
    run_json = folder.read("run.json") or {}
    summary = folder.read("summary.json")
    state = "running" if folder.is_running() else summary["status"] if summary else "killed"
    return {
        "run_id": folder.run_id,
        "job": run_json["job"]["name"],
        "lab": run_json["lab"]["name"],
        "state": state,
        "summary": summary,
    }
