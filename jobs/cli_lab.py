"""The verbs about a lab: up, probe, down. Each opens or makes the lab and shows it."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_making import (
    RUNS,
    backend_option,
    making_of,
    monitoring_option,
    privilege_option,
    subnet_option,
)

if TYPE_CHECKING:
    from cluster.backends import Chosen
    from cluster.lab import Lab, LabEvent
    from cluster.spec import ClusterSpec
    from jobs.server.monitoring import Watching
    from jobs.server.process import Serving

SCHEMA = 1
MOST = 1_000_000
"""Of anything that is counted on the command line."""

lab_option = click.option("--lab", "lab_name", default="default", help="Name of the lab.")
json_option = click.option("--json", "as_json", is_flag=True, help="Only JSON on standard output.")


@click.command()
@click.option("--cluster", default="2x2", help="A cluster of the catalog, or a file.")
@click.option("--rate", help="Limit of the links between nodes, such as 200mbit or 25MB/s.")
@backend_option
@subnet_option
@privilege_option
@monitoring_option
@click.option("--probe/--no-probe", default=True, help="Whether links are measured.")
@click.option("--dry-run", is_flag=True, help="Print the exact commands and do nothing.")
@lab_option
@json_option
def up(
    cluster: str,
    rate: str | None,
    backend: str,
    subnet: str | None,
    privilege: str,
    monitoring: bool,
    probe: bool,
    dry_run: bool,
    lab_name: str,
    as_json: bool,
) -> None:
    """Make a lab: nodes joined by links as slow as you ask, measured."""
    from cluster.lab import bring_up, plan
    from cluster.spec import load_cluster
    from jobs.server.monitoring import watch
    from jobs.server.process import serving

    spec = load_cluster(cluster, rate)
    making = making_of(backend, privilege, subnet, monitoring)
    if dry_run:
        commands = plan(spec, lab_name, making)
        click.echo(
            json.dumps({"schema": SCHEMA, "commands": commands}) if as_json else "\n".join(commands)
        )
        return
    started_s = time.monotonic()
    screen = _UpScreen(lab_name, spec, probe, as_json)
    with screen, serving(RUNS, lab_name) as exporter:
        lab = bring_up(spec, lab_name, making, probe, screen.event)
    took_s = time.monotonic() - started_s
    watching = watch(exporter, lab, monitoring)
    if as_json:
        watched = {"exporter": exporter.address(), "monitoring": dict(watching.pages)}
        fault = exporter.fault or watching.fault
        document = {**_lab_json(lab, screen.chosen), **watched, "watch_fault": fault}
        click.echo(json.dumps(document))
    else:
        screen.ready(lab, took_s)
        _show_watching(exporter, watching)


@click.command()
@lab_option
@json_option
def probe(lab_name: str, as_json: bool) -> int:
    """Measure the links of the lab again."""
    from cluster.errors import ProbeFailed
    from cluster.lab import measure, open_lab
    from jobs.report.lab_screens import links_table, probe_header

    if not as_json:
        lab = open_lab(lab_name)
        show_answer(lambda width: probe_header(lab, width), None, as_json)
    try:
        lab = measure(lab_name)
    except ProbeFailed:
        if not as_json:
            raise
        lab = open_lab(lab_name)  # the bad measurement was kept: it is the answer
    report = lab.probe.to_json() if lab.probe else {"schema": SCHEMA, "ok": False, "links": []}
    show_answer(lambda width: links_table(lab, width), report, as_json)
    return 0 if report["ok"] else 1


@click.command()
@lab_option
@json_option
def down(lab_name: str, as_json: bool) -> None:
    """Take the lab down."""
    from cluster.lab import take_down, user_of
    from jobs.report.lab_screens import down_line
    from jobs.server.process import end_unwanted

    user = user_of(lab_name)
    try:
        lab = take_down(lab_name)
    finally:
        end_unwanted()
    answer = {"schema": SCHEMA, "lab": lab.name, "down": True}
    show_answer(lambda width: down_line(lab, user, width), answer, as_json)


def _show_watching(exporter: "Serving", watching: "Watching") -> None:
    from jobs.report.terminal import output_console, show
    from jobs.report.watch_lines import page_lines, unwatched_lines, watch_lines

    console, address = output_console(), exporter.address()
    lines = watch_lines([address]) + page_lines(watching.pages)
    for fault in dict.fromkeys(fault for fault in (exporter.fault, watching.fault) if fault):
        lines += unwatched_lines(fault, console.width)
    show(console, lines)


class _UpScreen:
    """Shows a lab coming up: its first line with the first step, a line per finished step."""

    def __init__(self, name: str, spec: "ClusterSpec", probe: bool, as_json: bool) -> None:
        from jobs.report.terminal import error_console, output_console

        self.chosen: Chosen | None = None
        """The backend that was taken; None where the lab was up already."""
        self._name, self._spec, self._probe = name, spec, probe
        self._console = error_console() if as_json else output_console()
        self._status: Any = None

    def __enter__(self) -> "_UpScreen":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_status()

    def event(self, event: "LabEvent") -> None:
        from jobs.report.lab_screens import STEPS, coming_up, image_line, step_line
        from jobs.report.terminal import show

        width = self._console.width
        self._stop_status()
        if event.chosen is not None:
            self.chosen = event.chosen
            show(self._console, coming_up(self._name, self._spec, event.chosen, self._probe, width))
        elif event.seconds is not None:
            show(self._console, step_line(event.step, event.seconds, self._spec, width))
        else:
            if event.step == "image":
                show(self._console, image_line(width))
            if self._console.is_terminal:
                words = f"{event.step}: {STEPS.get(event.step, '')}"
                self._status = self._console.status(words, spinner="line")
                self._status.start()

    def ready(self, lab: "Lab", took_s: float) -> None:
        from jobs.report.lab_screens import already_up, links_table, node_lines, ready_lines
        from jobs.report.terminal import show
        from jobs.report.text import line
        from jobs.runinfo import cores_for

        width = self._console.width
        if lab.already_up and self.chosen is None:
            show(self._console, already_up(lab, width))
            return
        lines = node_lines(lab, width)
        if lab.probe is not None:
            lines += [line(), *links_table(lab, width)]
        show(self._console, [*lines, *ready_lines(lab, took_s, cores_for(lab.spec), width)])

    def _stop_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def _lab_json(lab: "Lab", chosen: "Chosen | None") -> dict[str, Any]:
    """`backend_reason` is null where the backend was asked for, or the lab was there already."""
    return {
        "schema": SCHEMA,
        "lab": lab.name,
        "backend": lab.backend,
        "backend_reason": chosen.reason if chosen else None,
        "cluster": lab.spec.to_dict(),
        "nodes": [{"name": node.name, "address": node.address} for node in lab.nodes.list()],
        "created_at": lab.created_at,
        "already_up": lab.already_up,
        "probe": lab.probe.to_json() if lab.probe else None,
    }


def show_answer(screen: Callable[[int], Any], answer: dict[str, Any] | None, as_json: bool) -> None:
    """The answer as JSON, or the screen at the width of standard output."""
    from jobs.report.terminal import output_console, show

    if as_json:
        click.echo(json.dumps(answer))
        return
    console = output_console()
    show(console, screen(console.width))
