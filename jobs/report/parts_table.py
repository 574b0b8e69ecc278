"""The parts of a run whose links were changed, as a table of the closing screen."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.report.lab_words import rate_words
from jobs.report.table import Column, table
from jobs.report.text import QUIET, Lines, line, ms_decimals, number, paragraph, percent

COLUMNS = (
    Column(("steps",), right=False),
    Column(("links",), right=False, cut=12),
    Column(("STEP", "ms")),
    Column(("8 of 10", "steps, ms"), from_width=100),
    Column(("waits for", "network, ms")),
    Column(("effi-", "ciency")),
)
MOST_NAMES = 2


def parts_table(summary: Mapping[str, Any], width: int) -> Lines:
    """Nothing where the links were as they were."""
    parts = summary["parts"]
    if not parts:
        return []
    rows = [_row(part) for part in parts]
    lines = [line(text) for text in table(COLUMNS, rows, width)]
    counted = sum(part["step_seconds"]["n"] for part in parts)
    between = summary["steps"] - counted
    text = (
        f"The links were changed while the job ran. {_steps_between(between)} All other figures "
        "here are of all steps."
    )
    return [*lines, *paragraph(text, width, indent="  ", style=QUIET, first_indent="  "), line()]


def _steps_between(num: int) -> str:
    if num == 0:
        return "It fell between two steps."
    return f"{num} {'step' if num == 1 else 'steps'} during a change: in no part."


def _row(part: Mapping[str, Any]) -> list[str]:
    step, comm = part["step_seconds"], part["comm_seconds"]
    decimals = ms_decimals(step["mean"])
    low, high = (number(step[key] * 1e3, decimals) for key in ("p10", "p90"))
    slower_s = comm["straggler_wait"]
    wait_s = max(0.0, comm["exposed"] - (slower_s or 0.0))
    sign = "< " if slower_s is None else ""  # that wait is in it
    efficiency = part["communication_efficiency_ratio"]
    return [
        f"{part['first_step'] + 1} - {part['last_step'] + 1}",  # people count from 1
        limits_words(part["links"]),
        number(step["mean"] * 1e3, decimals),
        f"{low} - {high}",
        f"{sign}{number(wait_s * 1e3, decimals)}",
        "-" if efficiency is None else percent(efficiency),
    ]


def limits_words(links: Sequence[Mapping[str, Any]]) -> str:
    """`200 Mbit/s, node1 50 Mbit/s; inside 1 Gbit/s`: what most have, then those that differ."""
    nic = _rates(links, "out")
    inside = _rates(links, "inside")
    words = [_grouped(nic)]
    if any(rate is not None for rate in inside.values()):
        words.append(f"inside {_grouped(inside)}")
    return "; ".join(words)


def _rates(links: Sequence[Mapping[str, Any]], direction: str) -> dict[str, int | None]:
    return {
        link["node"]: link["configured_bits_per_second"]
        for link in links
        if link["direction"] == direction
    }


def _grouped(rates: Mapping[str, int | None]) -> str:
    (usual, _), *others = Counter(rates.values()).most_common()
    words = [rate_words(usual)]
    for rate, _ in others:
        nodes = [node for node, own in rates.items() if own == rate]
        names = " and ".join(nodes) if len(nodes) <= MOST_NAMES else f"{len(nodes)} nodes"
        words.append(f"{names} {rate_words(rate)}")
    return ", ".join(words)
