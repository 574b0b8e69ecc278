"""What `predict` prints: the rule of thumb, then each algorithm, and what they leave out."""

from collections.abc import Mapping, Sequence

from jobs.estimate.estimate import GOOD_ENOUGH, Asked, Estimate, RuleOfThumb
from jobs.report.table import Column, table
from jobs.report.text import (
    Lines,
    count,
    labelled,
    line,
    number,
    paragraph,
    percent,
    significant,
)

COLUMNS = (
    Column(("algorithm",), right=False),
    Column(("a node", "sends")),
    Column(("NICs", "busy")),
    Column(("inside", "busy"), from_width=100),
    Column(("all-", "reduce")),
    Column(("step", "")),
    Column(("effi-", "ciency")),
    Column(("none", "hidden"), from_width=120),
    Column(("all", "hidden"), from_width=100),
    Column((f"for {percent(GOOD_ENOUGH)}", "a NIC of")),
)
UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def predict_screen(
    asked: Asked, thumbs: Mapping[str, RuleOfThumb], rows: Sequence[Estimate], width: int
) -> Lines:
    """All of it; nothing was measured, and that is said."""
    lines = [*paragraph(_head(asked), width), line()]
    lines += _thumb_lines(thumbs, width)
    lines.append(line())
    lines += [line(text) for text in table(COLUMNS, [_cells(row) for row in rows], width)]
    lines.append(line())
    for label, words in _legend(asked):
        lines += labelled(label, words, width, 15)
    lines += [line(), *paragraph(_verdict(asked, rows), width, style="bold")]
    lines += labelled("next", _next(asked), width, 8)
    return lines


def _head(asked: Asked) -> str:
    cluster = asked.cluster
    nics = f", {count(cluster.nics, 'NIC')} each" if cluster.nics > 1 else ""
    links, ranks = cluster.links, cluster.ranks_per_node
    who = "a rank inside its node" if cluster.rank_bytes_per_s else "a node inside"
    return (
        f"{amount(asked.gradient_bytes)} of gradients on every rank, reduced once a step; "
        f"{count(cluster.num_nodes, 'node')} x {count(ranks, 'rank')}{nics}. "
        f"A NIC carries {amount(links.nic_out.bytes_per_s)}/s, {who} "
        f"{amount(links.intra.bytes_per_s)}/s. A step computes for "
        f"{time(asked.compute_s)}; {_hides(asked)}. Nothing is measured here."
    )


def _hides(asked: Asked) -> str:
    buckets = asked.buckets
    if buckets is None:
        return f"communication can hide behind {percent(asked.overlap)} of that"
    those = count(len(buckets.num_bytes), "bucket")
    backward = f"a backward of {time(buckets.backward_s)}"
    if not buckets.overlap:
        return f"{those} are reduced after {backward}, as in the run"
    first, last = time(min(buckets.ready_s)), time(max(buckets.ready_s))
    return f"{those} are ready {first} to {last} into {backward}, as in the run"


def _what_hides(asked: Asked) -> str:
    if asked.buckets is None:
        return f"{percent(asked.overlap)} of computing hides it"
    return "what is sent before backward has ended is hidden"


def _thumb_lines(thumbs: Mapping[str, RuleOfThumb], width: int) -> Lines:
    inside, between = thumbs["intra_node"], thumbs["inter_node"]
    moved = amount(inside.moved_bytes)
    times = between.seconds / inside.seconds
    lines = paragraph(f"On paper, 2 x gradients / bandwidth: a ring moves {moved} a step.", width)
    for words, thumb in (("inside a node", inside), ("between nodes", between)):
        shown = (
            f"{time(thumb.seconds)}: {percent(thumb.efficiency_none_hidden)} efficiency with "
            f"nothing hidden, {percent(thumb.efficiency_all_hidden)} with everything"
        )
        lines += labelled(words, shown, width, 15)
    longer = f"between nodes it takes {significant(times)} times as long"
    return [*lines, *labelled("", longer, width, 15)]


def _cells(row: Estimate) -> list[str]:
    needed = "-" if row.needed_bytes_per_s is None else f"{amount(row.needed_bytes_per_s)}/s"
    return [
        row.algorithm,
        amount(row.sent_bytes),
        time(row.between_s),
        time(row.inside_s),
        time(row.comm_s),
        time(row.step_s),
        percent(row.efficiency),
        percent(row.efficiency_none_hidden),
        percent(row.efficiency_all_hidden),
        needed,
    ]


def _legend(asked: Asked) -> list[tuple[str, str]]:
    enough = percent(GOOD_ENOUGH)
    carried = asked.carried_ratio
    return [
        *([] if carried is None else [("RATE", _of_limit(carried))]),
        (
            "a node sends",
            "out of its NICs. The rule on paper knows no nodes: it leaves out which hops of a ring "
            "cross them",
        ),
        (
            "busy",
            "bytes / rate; an all-reduce takes longer by its latencies, and where stages wait for "
            "one another",
        ),
        (
            "efficiency",
            f"computing / step; {_what_hides(asked)}",
        ),
        (
            f"for {enough}",
            "the slowest NIC with that efficiency; -: no NIC is fast enough, or none is used",
        ),
        (
            "left out",
            "what other jobs send, switches that carry less than their ports, ranks that are "
            "slower than others; sharded training (ZeRO, FSDP) moves other bytes",
        ),
    ]


def _of_limit(carried_ratio: float) -> str:
    share = percent(carried_ratio, 1)
    return f"what a NIC carries: of the limit that the run's lab had, {share}"


def _verdict(asked: Asked, rows: Sequence[Estimate]) -> str:
    best, worst = min(rows, key=lambda row: row.step_s), max(rows, key=lambda row: row.step_s)
    gain = worst.step_s / best.step_s
    words = f"{best.algorithm} is fastest: {time(best.step_s)} a step, {percent(best.efficiency)}"
    if gain > 1.01:
        words += f"; {worst.algorithm} takes {significant(gain)} times as long"
    held = best.step_s > asked.compute_s
    return f"{words}. {'Communication' if held else 'Computing'} is the bottleneck."


def _next(asked: Asked) -> str:
    if asked.cluster.num_ranks > 16:
        return "make run JOB=7b-thousandth      such a step in the lab, all divided by 1,000"
    return "make cluster-up && make run JOB=hier      measure it"


def amount(num_bytes: float) -> str:
    """Bytes with three digits: 14.0 GB."""
    for unit, size in UNITS:
        if num_bytes >= size:
            return f"{significant(num_bytes / size)} {unit}"
    return f"{number(num_bytes)} B"


def time(seconds: float) -> str:
    """Three digits, in the unit that shows them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{significant(seconds / size)} {unit}"
    return "0" if not seconds else f"{significant(seconds * 1e9)} ns"
