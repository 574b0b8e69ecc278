"""Screens about links that are changed: by `make link`, and while a run goes on."""

from collections.abc import Mapping

from cluster.lab import DEFAULT_LAB, Lab
from cluster.linklog import LinkChange
from cluster.spec import ALL
from cluster.units import format_rate, parse_optional_rate
from jobs.report.lab_screens import (
    STEPS,
    links_table,
    measuring_s,
    next_lines,
    timed_line,
)
from jobs.report.lab_words import rate_words, unproven_words
from jobs.report.text import BAD, Lines, labelled, line, paragraph

VARIABLES = {"inter_node": "RATE", "intra_node": "INTRA_RATE"}
MOST_NAMES = 3
PHASE_HEAD = 34  # of the lines of a run's phases


def asked_words(node: str, rates: Mapping[str, str]) -> str:
    """`50 Mbit/s out of and into node1; 1 Gbit/s inside node1`."""
    who = "every node" if node == ALL else node
    places = {"inter_node": "out of and into", "intra_node": "inside"}
    words = [(rate_words(parse_optional_rate(text)), places[link]) for link, text in rates.items()]
    return "; ".join(f"{rate} {place} {who}" for rate, place in words)


def changing(lab: Lab, asked: str, measured: bool, width: int) -> Lines:
    """The first line of `link`; `measured`: whether the links will be."""
    about = f" About {measuring_s(lab.spec):.0f} s." if measured else ""
    return [*paragraph(f'Lab "{lab.name}": {asked}.{about}', width), line()]


def change_step(step: str, asked: str, took_s: float, width: int) -> Lines:
    """One finished step of `link`, with how long it took."""
    words = (
        f"{asked}; read back from the kernel: as asked"
        if step == "limit"
        else STEPS.get(step, step)
    )
    return timed_line(step, words, took_s, width)


def changed_lines(lab: Lab, undo: str | None, user: str | None, width: int) -> Lines:
    """The end of `link`: what the links carry now, or why that is not known, and what is next."""
    back = [line(f"  back    {undo}")] if undo else []
    if lab.probe is not None:
        return [line(), *links_table(lab, width), *next_lines(lab), *back]
    why = f"{user} uses these links, and is split at this step" if user else "as asked"
    text = (
        f"Not measured: {why}. Until they are measured, nothing is proven of what they carry; the "
        "next make run measures them first."
    )
    option = "" if lab.name == DEFAULT_LAB else f" LAB={lab.name}"
    following = line(f"  next    make cluster-probe{option}".ljust(44) + "measure them")
    return [line(), *paragraph(text, width, style="" if user else BAD), following, *back]


def undo_words(before: Lab, node: str, rates: Mapping[str, str]) -> str | None:
    """The command that puts the links back; None where one command cannot."""
    if node == ALL and before.spec.overrides:
        return None
    links = before.spec.links if node == ALL else before.spec.links_of(node)
    were = {
        "inter_node": links.inter_node.rate_bits_per_s,
        "intra_node": links.intra_node.rate_bits_per_s,
    }
    option = "" if before.name == DEFAULT_LAB else f" LAB={before.name}"
    words = " ".join(f"{VARIABLES[link]}={format_rate(were[link])}" for link in rates)
    return f"make link NODE={node} {words}{option}"


def stopped_lines(before: Lab, lab: Lab, width: int) -> Lines:
    """What stands after somebody stopped `link`."""
    same = before.spec.resolved() == lab.spec.resolved()
    what = "as they were" if same else "changed, and not measured: make cluster-probe"
    return paragraph(f'The links of lab "{lab.name}" are {what} ({lab.spec.describe()}).', width)


def measured_first(lab: Lab, width: int) -> Lines:
    """Before a run, where what is known of the links is not true any more."""
    off = "one of them was off when they were last measured"
    why = f"they were {unproven_words(lab)}" if lab.proof == "stale" else off
    text = f"The links are measured first: {why}. About {measuring_s(lab.spec):.0f} s."
    return [*paragraph(text, width), line()]


def change_line(change: LinkChange, steps_done: int, width: int) -> Lines:
    """A change while a run goes on, among the lines of its phases."""
    when = f"after step {steps_done}" if steps_done else "before the first step"
    text = f"{_change_words(change)} from here on ({when}); not measured"
    return labelled("link", text, width, label_width=PHASE_HEAD)


def _change_words(change: LinkChange) -> str:
    """`node1 50 Mbit/s`, and `inside node1 1 Gbit/s` where that was changed."""
    groups: dict[tuple[str, int | None], list[str]] = {}
    for rate in change.rates:
        if rate.direction != "in":  # as out
            place = "inside " if rate.direction == "inside" else ""
            groups.setdefault((place, rate.configured_bits_per_second), []).append(rate.node)
    return ", ".join(
        f"{place}{_names(nodes)} {rate_words(rate)}" for (place, rate), nodes in groups.items()
    )


def _names(nodes: list[str]) -> str:
    return " and ".join(nodes) if len(nodes) <= MOST_NAMES else f"{len(nodes)} nodes"
