"""The table of `scale`: each job at each size, and where the lost time of a step goes."""

from collections.abc import Sequence
from math import floor

from jobs.report.table import Column, table
from jobs.report.text import (
    BAD,
    QUIET,
    Lines,
    labelled,
    line,
    ms_decimals,
    number,
    percent,
    significant,
)
from jobs.scale.rows import ScaleRow

NODE_WIDTH = 100
COLUMNS = (
    Column(("job",), right=False, cut=6),
    Column(("lab",), right=False),
    Column(("STEP", "ms")),
    Column(("samples", "a second"), from_width=100),
    Column(("effi-", "ciency")),
    Column(("pre-", "dicted")),
    Column(("off by", "points"), from_width=120),
    Column(("against", "a node"), from_width=NODE_WIDTH),
    Column(("lost", "ms"), from_width=100),
    Column(("to the", "network")),
    Column(("slower", "rank")),
    Column(("conten-", "tion")),
    Column(("", "other")),
)
NONE = "-"
CROWDED = " !"


def scale_table(rows: Sequence[ScaleRow], width: int) -> Lines:
    """Rows as they come, job by job; the parts of the lost time add up as they stand."""
    texts = table(COLUMNS, [_cells(row) for row in rows], width)
    return [line(text) for text in texts]


def _cells(row: ScaleRow) -> list[str]:
    decimals = ms_decimals(row.one_rank.step_s)
    return [
        row.job,
        str(row.size) + (CROWDED if row.crowded else ""),
        number(row.figures.step_s * 1e3, decimals),
        significant(row.figures.samples_per_s),
        _percent(row.efficiency),
        _percent(row.predicted),
        NONE if row.off_by is None else f"{row.off_by * 100:+.1f}",
        _percent(row.node_efficiency),
        *_lost(row, decimals),
    ]


def _lost(row: ScaleRow, decimals: int) -> list[str]:
    lost = row.lost
    if lost is None:
        return [NONE] * 5
    parts_s = [lost.network_s, lost.slower_rank_s, lost.contention_s, lost.other_s]
    parts, total = whole_ms(parts_s, decimals)
    return [total, *parts]


def whole_ms(parts_s: Sequence[float], decimals: int) -> tuple[list[str], str]:
    """Milliseconds, some of them perhaps below 0, that add up, digit for digit, to their total."""
    exact = [part * 1e3 * 10**decimals for part in parts_s]
    total = round(sum(exact))
    rounded = [floor(part) for part in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: rounded[place] - exact[place])
    for place in by_remainder[: total - sum(rounded)]:
        rounded[place] += 1
    texts = [number(value / 10**decimals, decimals) for value in [*rounded, total]]
    return texts[:-1], texts[-1]


def _percent(ratio: float | None) -> str:
    return NONE if ratio is None else percent(ratio)


def legend(rows: Sequence[ScaleRow], strong: bool, width: int) -> Lines:
    """What each column means, for the sizes that are there."""
    ideal = "one rank's step / the number of ranks" if strong else "one rank's step"
    more = ", or does not get less with the batch" if strong else ""
    lines = _entry(
        "efficiency",
        "samples a second / (number of ranks x those of one rank alone, 1x1 of the same job)",
        width,
    )
    lines += _entry(
        "predicted",
        "the same with the step that the run predicted before its first counted one, from its own "
        "steps without network and the measured links: the two differ only in the network",
        width,
    )
    if any(row.node_efficiency is not None for row in rows) and width >= NODE_WIDTH:
        words = "samples a second / (number of nodes x those of one full node)"
        lines += _entry("against a node", words, width)
    lines += _entry(
        "lost",
        f"ms of a step above {ideal}. Network: waiting while gradients cross it. Slower rank: "
        "waiting for one. Contention: computing takes longer than on one rank alone, though "
        f"nothing is sent{more}. Other: the rest",
        width,
    )
    if any(row.crowded for row in rows):
        words = "ranks share cores, and computing is real: times are not those of ranks with cores"
        lines += _entry(CROWDED.strip(), words, width)
    for words in _withheld(rows, width):
        lines += labelled("withheld", words, width, LEGEND_WIDTH, BAD)
    return lines


def _withheld(rows: Sequence[ScaleRow], width: int) -> list[str]:
    """Each reason once, of the columns that are there."""
    found = [f"{row.job}: {row.withheld}" for row in rows if row.withheld]
    if width >= NODE_WIDTH:
        found += [f"{row.job}: {row.node_withheld}" for row in rows if row.node_withheld]
    return list(dict.fromkeys(found))


LEGEND_WIDTH = 16


def _entry(label: str, words: str, width: int) -> Lines:
    return labelled(label, words, width, LEGEND_WIDTH, QUIET)
