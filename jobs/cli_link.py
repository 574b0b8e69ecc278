"""The verb link: other rates for a lab that is up, and the door through which runs enter a lab."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_lab import json_option, lab_option
from jobs.verbs import CommandLineError

if TYPE_CHECKING:
    from rich.console import Console

    from cluster.lab import Lab, LabEvent
    from cluster.spec import ClusterSpec

SCHEMA = 1


@click.command()
@click.option("--node", required=True, help="node0, node1, ..., or all.")
@click.option("--rate", help="New limit out of and into the node: 200mbit, 25MB/s, unlimited.")
@click.option("--intra-rate", help="New limit of the traffic inside the node.")
@click.option("--probe/--no-probe", default=True, help="Whether links are measured afterwards.")
@click.option("--dry-run", is_flag=True, help="Print the exact commands and do nothing.")
@lab_option
@json_option
def link(
    node: str,
    rate: str | None,
    intra_rate: str | None,
    probe: bool,
    dry_run: bool,
    lab_name: str,
    as_json: bool,
) -> None:
    """Change the links of a lab that is up, also while a job runs."""
    from cluster.links import plan_change

    rates = _rates(rate, intra_rate)
    if dry_run:
        commands = plan_change(lab_name, node, rates)
        answer = json.dumps({"schema": SCHEMA, "commands": commands})
        click.echo(answer if as_json else "\n".join(commands), nl=as_json or bool(commands))
        return
    _change(lab_name, node, rates, probe, as_json)


def _rates(rate: str | None, intra_rate: str | None) -> dict[str, str]:
    given = {"inter_node": rate, "intra_node": intra_rate}
    rates = {link: text for link, text in given.items() if text is not None}
    if not rates:
        raise CommandLineError(
            "link needs a rate",
            rule="RATE is the limit between nodes, INTRA_RATE the one inside a node",
            fix="make link NODE=node1 RATE=50mbit",
        )
    return rates


def _change(lab_name: str, node: str, rates: Mapping[str, str], probe: bool, as_json: bool) -> None:
    from cluster.lab import open_lab, user_of
    from cluster.links import change_links
    from jobs.report.link_screens import changed_lines, stopped_lines, undo_words
    from jobs.report.terminal import error_console, output_console, show

    before = open_lab(lab_name)
    after = before.spec.with_rates(node, rates)  # what cannot be meant is refused at once
    _refuse_under_shared_memory(before, after)
    screen = _Steps(before, node, rates, probe, error_console() if as_json else output_console())
    try:
        lab = change_links(lab_name, node, rates, probe, screen.event)
    except KeyboardInterrupt:
        console = error_console()
        show(console, stopped_lines(before, open_lab(lab_name), console.width))
        raise
    user = user_of(lab_name)
    if as_json:
        click.echo(json.dumps(_answer(before, lab, user)))
        return
    changed = before.spec.resolved() != lab.spec.resolved()
    undo = undo_words(before, node, rates) if changed else None
    show(screen.console, changed_lines(lab, undo, user, screen.console.width))


def _refuse_under_shared_memory(before: "Lab", after: "ClusterSpec") -> None:
    """Ranks that read each other's memory know no rate: what was set would not be kept."""
    from cluster.lab import user_of

    user = user_of(before.name)
    if user is not None and after.limits_insides and not before.spec.limits_insides:
        raise CommandLineError(
            f"a rate inside a node, while {user} is on lab {before.name!r}",
            rule="its ranks share memory inside a node, as there was no rate when they started",
            fix="wait for it to end, then change the link and run it again",
        )


class _Steps:
    """Shows what `link` does: its first line at once, a line per finished step."""

    def __init__(
        self, before: "Lab", node: str, rates: Mapping[str, str], probe: bool, console: "Console"
    ) -> None:
        from cluster.lab import user_of
        from jobs.report.link_screens import asked_words, changing
        from jobs.report.terminal import show

        self.console = console
        self._asked = asked_words(node, rates)
        measured = probe and user_of(before.name) is None
        show(console, changing(before, self._asked, measured, console.width))

    def event(self, event: "LabEvent") -> None:
        from jobs.report.link_screens import change_step
        from jobs.report.terminal import show

        if event.seconds is not None:
            lines = change_step(event.step, self._asked, event.seconds, self.console.width)
            show(self.console, lines)


def _answer(before: "Lab", lab: "Lab", user: str | None) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "lab": lab.name,
        "changed": before.spec.resolved() != lab.spec.resolved(),
        "cluster": lab.spec.to_dict(),
        "proof": lab.proof,
        "probe": lab.probe.to_json() if lab.probe else None,
        "in_use": user,
    }


def lab_to_run_on(lab: "Lab", as_json: bool) -> "Lab":
    """The lab, its links measured first where what is known of them is not true now.

    Raises ProbeFailed where they do not carry what they are limited to.
    """
    from cluster.links import proven
    from jobs.report.link_screens import measured_first
    from jobs.report.terminal import error_console, output_console, show

    console = error_console() if as_json else output_console()

    def tell(event: "LabEvent") -> None:
        if event.seconds is None:
            show(console, measured_first(lab, console.width))

    return proven(lab, tell)
