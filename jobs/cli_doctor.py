"""The verb doctor: what this machine lacks for a lab, and what mends it."""

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_lab import json_option

if TYPE_CHECKING:
    from cluster.doctor.checks import Check

SCHEMA = 1
RUNS = Path("runs")
DEFAULT = "2x2"
ABOUT_S, QUICK_S = 15, 5


def _read(_context: click.Context, _option: click.Parameter, text: str) -> Any:
    try:
        return [(name, state, seen, fix) for name, state, seen, fix in json.loads(text)]
    except (TypeError, ValueError) as exc:
        raise click.BadParameter("it is JSON, written by the front door") from exc


@click.command()
@click.option("--cluster", default=DEFAULT, help="The cluster that is asked about, or a file.")
@click.option("--rate", help="The rate that is asked about, such as 1gbit.")
@click.option("--privilege", default="none", type=click.Choice(["none", "sudo"]), help="As for up.")
@click.option("--quick", is_flag=True, help="Do not measure what links carry.")
@click.option("--before", hidden=True, default="[]", callback=_read, help="Checks made already.")
@json_option
def doctor(
    cluster: str, rate: str | None, privilege: str, quick: bool, before: Any, as_json: bool
) -> int:
    """Try all that a lab needs, and say what is missing and what mends it."""
    from cluster.doctor.checks import Check, has_fault
    from cluster.spec import load_cluster
    from jobs.doctor import Examination, examine

    spec = load_cluster(cluster, rate)
    made = [Check(name, state, seen, tuple(fix)) for name, state, seen, fix in before]
    checks = examine(Examination(cluster, spec, RUNS, privilege, quick), made)
    if as_json:
        found = list(checks)
        documents = [check.to_json() for check in found]
        answer = {"schema": SCHEMA, "ok": not has_fault(found), "checks": documents}
        click.echo(json.dumps(answer))
    else:
        name, _, what = spec.describe().partition(": ")
        about = f"Trying what {name} ({what}) needs of this machine."
        options = f" CLUSTER={cluster}" if cluster != DEFAULT else ""
        options += f" RATE={rate}" if rate else ""
        found = _show(checks, f"{about} About {QUICK_S if quick else ABOUT_S} s.", options)
    return 1 if has_fault(found) else 0


def _show(checks: "Iterable[Check]", header: str, options: str) -> "list[Check]":
    """Each line as soon as it is known."""
    from jobs.report.doctor_screen import check_lines, closing_lines
    from jobs.report.terminal import output_console, show
    from jobs.report.text import line, paragraph

    console = output_console()
    show(console, [*paragraph(header, console.width), line()])
    waiting = console.status("trying", spinner="line") if console.is_terminal else nullcontext()
    found = []
    with waiting:
        for check in checks:
            found.append(check)
            show(console, [line(*each) for each in check_lines(check, console.width)])
    show(console, [line(*each) for each in closing_lines(found, options, console.width)])
    return found
