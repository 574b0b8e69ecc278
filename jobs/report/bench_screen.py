"""The table of a bench, what its words mean, its floors, and what to type next."""

from collections.abc import Sequence
from itertools import groupby

from cluster.site import Site
from jobs.bench.asked import BASE, BenchSpec, repeats
from jobs.bench.estimate import seconds as about_seconds
from jobs.bench.floors import Checked, Figure
from jobs.bench.rows import Row
from jobs.bench.sizes import size_words
from jobs.report.site_words import site_words
from jobs.report.table import Column, table
from jobs.report.text import (
    BAD,
    GOOD,
    LOUD,
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
    placed = len({row.contender.placement for row in rows}) > 1
    columns = [
        Column(("size S",)),
        Column(("",), right=False),
        Column(("algorithm",), right=False),
        *([Column(("ranks", "placed"), right=False)] if placed else []),
        Column(("time", "ms")),
        Column(("8 of 10", "rounds, ms"), from_width=120 if placed or busbw else 100),
        Column(("algbw", "MB/s"), from_width=100),
        *([Column(("busbw", "MB/s *"))] if busbw else []),
        Column(("sent", "/ S")),
        Column(("of wire", "limit")),
        Column(("times as fast", f"as {BASE}")),
        Column(("at", "most"), from_width=120),
        Column(("predicted", "off by")),
    ]
    cells, best = [], []
    for _, group in groupby(rows, key=lambda row: row.size_bytes):
        for place, row in enumerate(group):
            cells.append(_cells(row, place == 0, placed, busbw))
            best.append(row.fastest)
    lines = [line(text) for text in table(columns, cells, width)]
    heads = len(lines) - len(cells)
    for each, marked in zip(lines[heads:], best, strict=True):
        if marked:
            each.stylize("bold")
    return lines


def _cells(row: Row, first: bool, placed: bool, busbw: bool) -> list[str]:
    time = row.time
    return [
        size_words(row.size_bytes) if first else "",
        "*" if row.fastest else "",
        row.contender.name,
        *([row.contender.placement] if placed else []),
        _ms(time.median, time.median),
        f"{_ms(time.p10, time.median)} - {_ms(time.p90, time.median)}",
        significant(row.algbw / 1e6),
        *(["-" if row.busbw is None else significant(row.busbw / 1e6)] if busbw else []),
        number(row.payload_ratio, 2),
        "-" if row.limit_ratio is None else percent(row.limit_ratio),
        _times(row),
        "-" if row.ceiling is None else number(row.ceiling, 2),
        "-" if row.predicted_error is None else percent(row.predicted_error),
    ]


def _ms(value_s: float, about_s: float) -> str:
    return number(value_s * 1e3, ms_decimals(about_s) + (about_s < 0.001))


def _times(row: Row) -> str:
    if row.over_native is None:
        return "-"
    if row.contender.algorithm == BASE:
        return "1        "
    from jobs.report.compare_screen import times

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
    if any(row.limit_ratio is not None for row in rows):
        entries["wire limit"] = (
            "those least bytes at the rate measured both ways at once; at 100 % nothing can be "
            "faster on this link"
        )
    entries[BASE] = _native_words(rows)
    if any(row.over_native and row.over_native.low is not None for row in rows):
        entries["+-"] = (
            f"covers 95 % (bootstrap over the {count(rows[0].time.n, 'round')}; means of both)"
        )
    if any(row.predicted_error is not None for row in rows):
        entries["off by"] = "predicted before the first round / measured - 1"
    small = [row.size_bytes for row in rows if repeats(row.size_bytes) > 1]
    if small:
        entries["small sizes"] = (
            f"to {size_words(max(small))}: the mean of {repeats(max(small))} to "
            f"{repeats(min(small))} in a row"
        )
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
    words = f"  wrong: {wrong:,}   (every sum of every round on every rank against exact integers)"
    room = layout(width)
    return [line(words.ljust(room - len(verdict)) + verdict, style)]


def floors_table(checked: Checked, width: int) -> Lines:
    """Every floor of this lab, and where the others are checked."""
    columns = [
        Column(("figure",), right=False, cut=30),
        Column(("measured",)),
        Column(("floor",)),
        Column(("target",)),
        Column(("",), right=False),
    ]
    cells = [_figure(each) for each in checked.figures]
    lines = [line(text) for text in table(columns, cells, width)]
    heads = len(lines) - len(cells)
    for each, figure in zip(lines[heads:], checked.figures, strict=True):
        each.stylize(GOOD if figure.passes else BAD)
    lines.append(line())
    for other in checked.elsewhere:
        where = f"{other.shape} at {other.rate}" if other.rate else other.shape
        text = f"not checked here: {count(len(other.figures), 'figure')}: {other.command}"
        lines += labelled(where, text, width, 15, QUIET)
    for name in checked.missing:
        lines += labelled(name, "has floors, but is no algorithm yet", width, 15, QUIET)
    return lines


def _figure(figure: Figure) -> list[str]:
    verdict = (
        "target reached" if figure.reaches else "passes" if figure.passes else "UNDER ITS FLOOR"
    )
    limit = "at most " if figure.at_most else ""
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


def next_lines(rows: Sequence[Row], folder: str, options: str, width: int) -> Lines:
    """What to type next, and where the files are."""
    sizes = {row.size_bytes for row in rows}
    small = 'SIZES="64KiB 1MiB"' if min(sizes) > 2**20 else 'SIZES="4MiB 16MiB"'
    lines = labelled("next", f"make bench {small}{options}    other sizes", width, 8)
    lines += labelled("", f"make bench CHECK=1{options}    against what must be reached", width, 8)
    return [*lines, *labelled("files", f"runs/{folder}: {FILES}", width, 8)]
