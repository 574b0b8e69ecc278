"""The table of a bench, what its words mean, its floors, and what to type next."""

from collections.abc import Sequence
from itertools import groupby

from cluster.site import Site
from ddp.fixed import in_a_row
from jobs.bench.asked import BASE, BenchSpec
from jobs.bench.estimate import seconds as about_seconds
from jobs.bench.floors import Checked, Figure
from jobs.bench.rows import Row
from jobs.bench.sizes import size_words
from jobs.report.compare_screen import times
from jobs.report.site_words import site_words
from jobs.report.table import Column, table
from jobs.report.text import (
    BAD,
    GOOD,
    QUIET,
    Lines,
    count,
    labelled,
    layout,
    line,
    ms_decimals,
    number,
    paragraph,
    percent,
    significant,
)

LABEL_WIDTH = 13
FILES = "bench.csv, bench.json"
SEEN_ABOVE = 1.005  # of the wire's limit, as it is rounded
DROPPED_FIRST = ("range", "algbw", "most", "sent", "off", "limit")


def bench_header(bench: BenchSpec, site: Site, cores: int, width: int) -> Lines:
    """What is timed, where, in what order, and for how long."""
    ranks = site.spec.nodes * site.spec.ranks_per_node
    shared = f" {count(ranks, 'rank')} share {count(cores, 'core')}." if ranks > cores else ""
    about_s = about_seconds(bench, site)
    lines = paragraph(
        f"All-reduce of {bench.dtype}, no training. {site_words(site)}.{shared}", width
    )
    lines += paragraph(
        f"Algorithms take turns; {count(bench.rounds, 'round')} after {bench.warmup_rounds} of "
        f"warm-up; time of the slowest rank. About {-(-about_s // 5) * 5:,.0f} s.",
        width,
    )
    return [*lines, line()]


def bench_table(rows: Sequence[Row], busbw: bool, width: int) -> Lines:
    """Sizes one after another, contenders as they were asked for."""
    columns, cells = _columns(rows, busbw), _all_cells(rows)
    lines = _fitted(columns, cells, width)
    heads = len(lines) - len(cells)
    for each, row in zip(lines[heads:], rows, strict=True):
        if row.fastest:
            each.stylize("bold")
    return lines


def _columns(rows: Sequence[Row], busbw: bool) -> dict[str, Column]:
    """By what `_cells` calls them; those that would say nothing here are left out."""
    columns = {
        "size": Column(("size S",)),
        "algorithm": Column(("  algorithm",), right=False),
        "placed": Column(("ranks", "placed"), right=False),
        "time": Column(("time", "ms")),
        "range": Column(("8 of 10", "rounds, ms"), from_width=100),
        "algbw": Column(("algbw", "MB/s"), from_width=100),
        "busbw": Column(("busbw", "MB/s *")),
        "sent": Column(("sent", "/ S")),
        "limit": Column((f"of {rows[0].limit_of or 'wire'}", "limit")),
        "times": Column(("times as fast", f"as {BASE}")),
        "most": Column(("at", "most"), from_width=120),
        "off": Column(("predicted", "off by")),
    }
    linked = rows[0].shape.nodes > 1
    without = {"sent", "most"} if not linked else set()
    without |= {"limit"} if all(row.limit_s is None for row in rows) else set()
    without |= set() if busbw else {"busbw"}
    if len({row.contender.placement for row in rows}) == 1:
        without.add("placed")
    return {name: each for name, each in columns.items() if name not in without}


def _fitted(columns: dict[str, Column], cells: Sequence[dict[str, str]], width: int) -> Lines:
    """The table without the columns that it has no room for; the files have them all."""
    left = list(columns)
    for dropped in ("", *DROPPED_FIRST):
        left = [name for name in left if name != dropped]
        body = [[each[name] for name in left] for each in cells]
        texts = table([columns[name] for name in left], body, width)
        if max(map(len, texts)) <= layout(width):
            break
    return [line(text) for text in texts]


def _all_cells(rows: Sequence[Row]) -> list[dict[str, str]]:
    return [
        _cells(row, first=place == 0)
        for _, group in groupby(rows, key=lambda row: row.size_bytes)
        for place, row in enumerate(group)
    ]


def _cells(row: Row, *, first: bool) -> dict[str, str]:
    time = row.time
    return {
        "size": size_words(row.size_bytes) if first else "",
        "algorithm": f"{'*' if row.fastest else ' '} {row.name}",
        "placed": row.contender.placement,
        "time": _ms(time.median, time.median),
        "range": f"{_ms(time.p10, time.median)} - {_ms(time.p90, time.median)}",
        "algbw": significant(row.algbw / 1e6),
        "busbw": "-" if row.busbw is None else significant(row.busbw / 1e6),
        "sent": number(row.payload_ratio, 2),
        "limit": "-" if row.limit_ratio is None else percent(row.limit_ratio),
        "times": _times(row),
        "most": "-" if row.ceiling is None else number(row.ceiling, 2),
        "off": "-" if row.predicted_error is None else percent(round(row.predicted_error, 2) + 0.0),
    }


def _ms(value_s: float, about_s: float) -> str:
    return number(value_s * 1e3, ms_decimals(about_s) + (about_s < 0.001))


def _times(row: Row) -> str:
    if row.over_native is None:
        return "-"
    if row.contender.algorithm == BASE:
        return "1        "
    return times(row.over_native)


def legend(rows: Sequence[Row], busbw: bool, width: int) -> Lines:
    """What the words of the table mean."""
    entries = {"*": "fastest by more than the spread; no star: the difference is noise"}
    if busbw:
        entries["busbw *"] = (
            "algbw x 2(N-1)/N: what a ring's links would carry. It compares speed; it is no "
            "link's load"
        )
    entries["sent / S"] = _sent_words(rows)
    limits = [row.limit_ratio for row in rows if row.limit_ratio is not None]
    if limits:
        entries[f"{rows[0].limit_of} limit"] = _limit_words(rows[0].limit_of, max(limits))
    entries[BASE] = _native_words(rows)
    if any(row.over_native and row.over_native.low is not None for row in rows):
        entries["+-"] = (
            f"covers 95 % (bootstrap over {count(rows[0].time.n, 'round')}); times as fast: "
            "median of the rounds' ratios"
        )
    if any(row.predicted_error is not None for row in rows):
        entries["off by"] = "predicted before the first round / measured - 1"
    small = [row.size_bytes for row in rows if in_a_row(row.size_bytes) > 1]
    if small:
        most, least = in_a_row(min(small)), in_a_row(max(small))
        several = f"{most}" if most == least else f"{least} to {most}"
        entries["small sizes"] = f"to {size_words(max(small))}: the mean of {several} in a row"
    lines: Lines = []
    for label, text in entries.items():
        lines += labelled(label, text, width, LABEL_WIDTH, QUIET)
    return lines


def _sent_words(rows: Sequence[Row]) -> str:
    row = rows[0]
    if row.shape.nodes == 1:
        return "nothing leaves the node: there is no link between nodes here"
    least = 2 * (row.shape.nodes - 1) / row.shape.nodes
    told = "" if all(each.counted for each in rows) else f"; {BASE}'s is what its ring sends"
    return (
        f"payload bytes the busiest node puts on its link, over S; least: {number(least, 2)}{told}"
    )


def _limit_words(limit_of: str | None, most: float) -> str:
    if limit_of == "memory":
        return (
            "every rank at once adds up and writes as many bytes in memory of its own, with no "
            "message, in the same rounds: nothing can be faster here"
        )
    words = (
        "those least bytes at the rate measured both ways at once; at 100 % nothing can be faster"
    )
    if most < SEEN_ABOVE:
        return f"{words} on this link"
    return f"{words} for long: above it, a link that was idle let the first bytes pass at once"


def _native_words(rows: Sequence[Row]) -> str:
    words = "the backend's own all_reduce (gloo: one ring in rank order), on ordinary memory"
    ceilings = {row.contender.placement: row.ceiling for row in rows if row.ceiling is not None}
    if len(ceilings) == 1:
        return f"{words}. Most to win here: {number(next(iter(ceilings.values())), 2)}"
    told = ", ".join(f"{number(each, 2)} ({name} ranks)" for name, each in ceilings.items())
    return f"{words}. Most to win here: {told}" if told else words


def wrong_line(rows: Sequence[Row], width: int) -> Lines:
    """Whether every sum was right."""
    wrong = sum(row.wrong for row in rows)
    verdict, style = ("PASS", GOOD) if wrong == 0 else ("FAIL", BAD)
    words = f"  wrong: {wrong:,}   (each sum on each rank in each round, against exact integers)  "
    return [line(words.ljust(layout(width) - len(verdict)) + verdict, style)]


def floors_table(checked: Checked, width: int) -> Lines:
    """Every floor of this lab, and where the others are checked."""
    columns = [
        Column(("figure",), right=False),
        Column(("measured",)),
        Column(("floor",)),
        Column(("target",), from_width=100),
        Column(("",), right=False),
    ]
    cells = [_figure(each) for each in checked.figures]
    lines = [line(text) for text in table(columns, cells, width)]
    heads = len(lines) - len(cells)
    for each, figure in zip(lines[heads:], checked.figures, strict=True):
        each.stylize(GOOD if figure.passes else BAD)
    if checked.elsewhere:
        lines += [line(), line("  Checked on other labs:")]
    for other in checked.elsewhere:
        where = f"{other.shape} at {other.rate}" if other.rate else other.shape
        lines += labelled(where, "; ".join(other.figures), width, 16, QUIET)
        lines += labelled("", other.command, width, 16, QUIET)
    return lines


def _figure(figure: Figure) -> list[str]:
    verdict = "reached" if figure.reaches else "passes" if figure.passes else "UNDER"
    limit = "<= " if figure.at_most else ">= "
    return [
        figure.name,
        _value(figure.measured, figure.unit),
        limit + _value(figure.floor, figure.unit),
        limit + _value(figure.target, figure.unit),
        verdict,
    ]


def _value(value: float, unit: str) -> str:
    if unit == "%":
        return percent(value, 1)
    if unit == "sizes":
        return number(value)
    return f"{number(value, 2 if abs(value) < 9.995 else 1)}{' ' if unit else ''}{unit}"


def closing_screen(rows: Sequence[Row], checked: Checked | None, busbw: bool, width: int) -> Lines:
    """Everything a bench has to say but where its files are."""
    lines = [*bench_table(rows, busbw, width), *wrong_line(rows, width), line()]
    lines += legend(rows, busbw, width)
    if checked:
        lines += [line(), *floors_table(checked, width)]
    return lines


def next_lines(
    rows: Sequence[Row], checked: Checked | None, folder: str, options: str, width: int
) -> Lines:
    """What to type next, and where the files are."""
    large = min(row.size_bytes for row in rows) > 2**20
    sizes = 'SIZES="64KiB 1MiB"' if large else 'SIZES="4MiB 16MiB"'
    lines = labelled("next", f"make bench {sizes}{options}    other sizes", width, 8)
    if checked is None:
        text = f"make bench CHECK=1{options}    against what must be reached"
        lines += labelled("", text, width, 8)
    return [*lines, *labelled("files", f"runs/{folder}: {FILES}", width, 8)]
