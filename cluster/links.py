"""The links of a lab that is up: changed by a person, measured before they are trusted again.

Owns what a change means for the proof of the links. How it is made without ever being half made is
`cluster.relink`'s matter.
"""

from collections.abc import Mapping
from dataclasses import replace

from cluster.carried import carried_rate
from cluster.errors import ClusterError, LabBusy, ProbeFailed
from cluster.kept import DEFAULT_LAB, Lab, read_lab, write_lab
from cluster.lab import OnEvent, ignore, measure, measure_held, open_lab, timed
from cluster.relink import mend, set_links
from cluster.state import LabDirectory
from cluster.units import format_rate


def change_links(
    name: str,
    node: str,
    rates: Mapping[str, str],
    probe: bool = True,
    on_event: OnEvent = ignore,
) -> Lab:
    """Changes links of a lab that is up, also while a job runs; see ClusterSpec.with_rates.

    They are measured at once unless somebody uses them, and put back if they do not carry what was
    asked (ProbeFailed). `probe` is None in the result while they are not measured. Raises
    ShapingError, after which the links are as they were, or as the error says.
    """
    directory = LabDirectory.of(name)
    open_lab(name)
    with directory.locked():
        before = mend(read_lab(directory), directory)
        spec = before.spec.with_rates(node, rates)
        with timed("limit", on_event):
            lab = set_links(before, directory, spec)
        if not probe or (lab.probe is not None and lab.probe.ok) or directory.user():
            return lab
        try:
            return measure_held(lab, directory, on_event)
        except LabBusy:  # a job began just now
            return lab
        except ProbeFailed as exc:
            if lab is before:
                raise
            carried = _carried(lab, directory, on_event) if "inter_node" in rates else None
            _put_back(before, lab, directory)
            fixes = exc.fix if carried is None else (_less(node, carried, name), *exc.fix[1:])
            rule = f"{exc.rule}; so they were put back, read back: {before.spec.describe()}"
            raise ProbeFailed(exc.message, rule, fixes, seen=exc.seen) from exc


def _put_back(before: Lab, lab: Lab, directory: LabDirectory) -> None:
    """The links, and what is known of them, are as they were."""
    back = set_links(lab, directory, before.spec)
    write_lab(replace(back, probe=before.probe, changed_at=before.changed_at), directory)


def _carried(lab: Lab, directory: LabDirectory, on_event: OnEvent) -> int | None:
    """The highest rate that the links carry; None where it cannot be found. Leaves them anyhow."""
    try:
        with directory.in_use("the rate that it carries is looked for"), timed("search", on_event):
            write_lab(replace(lab, pending=lab.spec), directory)  # were we killed: as they were
            return carried_rate(lab.nodes, lab.spec)
    except ClusterError:
        return None


def _less(node: str, carried_bits_per_s: int, lab_name: str) -> str:
    rate = format_rate(carried_bits_per_s)
    option = "" if lab_name == DEFAULT_LAB else f" LAB={lab_name}"
    return f"this machine carries up to about {rate}: make link NODE={node} RATE={rate}{option}"


def plan_change(name: str, node: str, rates: Mapping[str, str]) -> tuple[str, ...]:
    """The exact commands with which change_links would change the links now."""
    lab = open_lab(name)
    spec = lab.spec.with_rates(node, rates)
    return tuple(
        command
        for each in lab.nodes.list()
        for command in lab.nodes.shape_plan(each, spec.links_of(each.name))
    )


def proven(lab: Lab, on_event: OnEvent = ignore) -> Lab:
    """The lab, measured again where its links were changed since, or were off when last measured.

    One that was brought up unmeasured stays so. Raises ProbeFailed, and LabBusy.
    """
    due = lab.proof == "stale" or (lab.probe is not None and not lab.probe.ok)
    return measure(lab.name, on_event) if due else lab
