"""Screens about a lab: coming up, its measured links, its state, going down."""

from collections.abc import Sequence

from cluster.backends import AUTO, Chosen
from cluster.lab import Lab
from cluster.probe import TOLERANCE, LinkMeasurement, ProbeReport
from cluster.spec import TCP_HEADER_BYTES, ClusterSpec
from jobs.report.lab_words import (
    GIGABIT,
    clock,
    lab_words,
    rate_unit,
    rate_words,
    rates_words,
    size_words,
    slowest_rate,
    unproven_words,
)
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
    number,
    paragraph,
    percent,
    seconds,
    significant,
)

STEPS = {
    "image": "the image that nodes are made of; it stays until what it is made of changes",
    "start": "make the nodes and their links",
    "limit": "limit each link and read the limit back from the kernel",
    "measure": "each link alone, then both directions at once",
    "search": "too much was asked: the highest rate that this machine carries",
}
UP_S = {"netns": 2.0, "compose": 4.0}
NODE_S = {"netns": 0.05, "compose": 0.5}
"""How long making a lab takes, and what each node adds."""
PROBE_S = 6.0


def coming_up(name: str, spec: ClusterSpec, chosen: Chosen, probe: bool, width: int) -> Lines:
    """The first line of `up`."""
    backend = chosen.backend
    about_s = making_s(backend.name, spec.nodes) + (measuring_s(spec) if probe else 0)
    where = backend.summary.partition(";")[0]
    text = f'Lab "{name}": {size_words(spec)}, in {where} ({backend_words(chosen)}). '
    return [*paragraph(f"{text}About {about_s:.0f} s.", width), line()]


def backend_words(chosen: Chosen) -> str:
    """`BACKEND=netns`, or what auto took, and why."""
    if chosen.reason is None:
        return f"BACKEND={chosen.backend.name}"
    return f"BACKEND={AUTO} took {chosen.backend.name}: {chosen.reason}"


def image_line(width: int) -> Lines:
    """As the image begins to be built."""
    return labelled("image", "is made, or got, once: about 2 minutes", width, label_width=9)


def making_s(backend: str, num_nodes: int) -> float:
    """About how long it takes to make a lab's nodes."""
    return UP_S.get(backend, 2.0) + NODE_S.get(backend, 0.0) * num_nodes


def measuring_s(spec: ClusterSpec) -> float:
    """About how long the probe takes."""
    return PROBE_S * (2 if spec.nodes > 1 and spec.nodes % 2 else 1)  # odd: one node waits its turn


def probe_header(lab: Lab, width: int) -> Lines:
    text = f'Measuring the links of lab "{lab.name}": {STEPS["measure"]}.'
    return [*paragraph(f"{text} About {measuring_s(lab.spec):.0f} s.", width), line()]


def step_line(step: str, took_s: float, spec: ClusterSpec, width: int) -> Lines:
    """One finished step of `up`, with how long it took."""
    words = STEPS.get(step, step)
    if step == "limit":
        rate = rate_words(spec.links.inter_node.rate_bits_per_s)
        intra = spec.links.intra_node.rate_bits_per_s
        inside = "" if intra is None else f", {rate_words(intra)} inside"
        others = f" ({', '.join(spec.overrides)}: its own)" if spec.overrides else ""
        words = (
            f"{rate} out of and into each node{inside}{others}; read back from the kernel: as asked"
        )
    return timed_line(step, words, took_s, width)


def timed_line(step: str, words: str, took_s: float, width: int) -> Lines:
    """`  step     words                0.3 s`."""
    time_width = 9
    lines = labelled(step, words, width, label_width=9, right_margin=time_width)
    lines[-1].pad_right(layout(width) - time_width - len(lines[-1].plain))
    lines[-1].append(seconds(took_s).rjust(time_width))
    return lines


def node_lines(lab: Lab, width: int) -> Lines:
    """Which node is where; the middle ones are left out where there are many."""
    nodes = lab.nodes.list()
    shown = nodes if len(nodes) <= 4 else (*nodes[:2], *nodes[-1:])
    words = [f"{node.name} {node.address}" for node in shown]
    if len(shown) < len(nodes):
        words.insert(2, "...")
    return labelled("nodes", "; ".join(words).replace("; ...;", " ..."), width, label_width=9)


def links_table(lab: Lab, width: int) -> Lines:
    """What each link was set to, can carry and was measured at, with the legend."""
    if lab.probe is None:
        text = f"Its links were {unproven_words(lab)}: make cluster-probe"
        return paragraph(text, width, indent="  ", style=BAD, first_indent="  ")
    unit_name, unit = rate_unit(lab.spec)
    columns = [
        Column(("link",), right=False, cut=8),
        Column(("limit", unit_name)),
        Column(("can carry *", unit_name)),
        Column(("one way", unit_name)),
        Column(("",)),
        Column(("both ways", unit_name)),
        Column(("",)),
        Column(("round trip", "ms"), from_width=100),
        Column(("",), right=False),
    ]
    rows = [*_link_rows(lab.probe, unit), *_inside_rows(lab.probe, unit)]
    lines = [line(text) for text in table(columns, rows, width)]
    for each in lines:
        each.highlight_words([" ok"], GOOD)
        each.highlight_words(["NOT OK"], BAD)
    return lines + _legend(lab, width)


def _link_rows(probe: ProbeReport, unit: float) -> list[list[str]]:
    rows = []
    for one in (link for link in probe.links if link.mode == "one_way"):
        both = _other_mode(probe, one)
        good = all(each is None or each.ok for each in (one, both))
        rows.append(
            [
                f"{one.src} -> {one.dst}",
                _limit(one.configured_bits_per_second, unit),
                _inrate_unit(one.ceiling_bytes_per_second, unit),
                _inrate_unit(one.measured_bytes_per_second, unit),
                _share(one.ratio),
                _inrate_unit(both.measured_bytes_per_second if both else None, unit),
                _share(both.ratio if both else None),
                _trip(one.round_trip_s),
                "ok" if good else "NOT OK",
            ]
        )
    return rows


def _inside_rows(probe: ProbeReport, unit: float) -> list[list[str]]:
    slowest = slowest_rate(probe)
    rows = []
    for link in (link for link in probe.links if link.mode == "intra_node"):
        rows.append(
            [
                f"inside {link.src}",
                _limit(link.configured_bits_per_second, unit),
                _inrate_unit(link.ceiling_bytes_per_second, unit),
                _inrate_unit(link.measured_bytes_per_second, unit),
                "",
                "",
                "",
                _trip(link.round_trip_s),
                _times(link.measured_bytes_per_second / slowest) if slowest else "",
            ]
        )
    return rows


def _legend(lab: Lab, width: int) -> Lines:
    assert lab.probe is not None
    between = [link for link in lab.probe.links if link.mode != "intra_node"]
    limited = [link for link in between if link.ceiling_bytes_per_second is not None]
    mtu = lab.spec.links.inter_node.mtu
    text = "x: times the slowest link between nodes. "
    if limited:
        ceiling = limited[0].ceiling_bytes_per_second or 0.0
        name, unit = rate_unit(lab.spec)
        overhead = 1 - (mtu - TCP_HEADER_BYTES) / (mtu + 14)
        text = (
            f"* training data: Ethernet, IP and TCP headers take {percent(overhead, 1)} of the "
            f"limit (packets of {mtu:,} bytes). {significant(ceiling * 8 / unit, 4)} {name} = "
            f"{significant(ceiling / 1e6)} MB/s. If a link carries less than "
            f"{percent(1 - TOLERANCE)} of what it can, it is refused. {text}"
        )
    return paragraph(text, width, indent="    ", style=QUIET, first_indent="  ")


_UNTOUCHED = {
    "netns": "Your own network settings were not touched.",
    "compose": "Nodes reach one another and nothing else; make cluster-down removes their network.",
}


def ready_lines(lab: Lab, took_s: float, num_cores: int, width: int) -> Lines:
    """The end of `up`: what is there now, and what to type next."""
    num_ranks = lab.spec.nodes * lab.spec.ranks_per_node
    fit = (
        "enough"
        if num_cores >= num_ranks
        else "ranks take turns, so computing that is not paced is slower and varies"
    )
    text = (
        f"Ready in {seconds(took_s)}. {count(num_cores, 'core')} for {count(num_ranks, 'rank')}: "
        f"{fit}. {_UNTOUCHED.get(lab.backend, '')}"
    )
    return [line(), *paragraph(text, width), *next_lines(lab)]


def already_up(lab: Lab, width: int) -> Lines:
    measured = f"measured at {clock(lab.probe.measured_at)}" if lab.probe else unproven_words(lab)
    rates = rates_words(lab.spec)
    text = f'Lab "{lab.name}" is already up, {measured}: {size_words(lab.spec)}, {rates}.'
    return [*paragraph(text, width), *next_lines(lab)]


def next_lines(lab: Lab) -> Lines:
    option = "" if lab.name == "default" else f" LAB={lab.name}"
    return [
        line(f"  next    make run JOB=hier{option}".ljust(44) + "train on this lab"),
        line(f"  stop    make cluster-down{option}"),
    ]


def status_screen(lab: Lab, width: int, doing: Sequence[str] = ()) -> Lines:
    """One lab in detail; `doing` says what runs on it now."""
    text = f'Lab "{lab.name}" is up since {clock(lab.created_at)}: {lab_words(lab)}'
    lines = [*paragraph(f"{text} (BACKEND={lab.backend})", width), *node_lines(lab, width)]
    for words in doing or ("nothing",):
        lines += labelled("runs", words, width, label_width=9)
    return [*lines, line(), *links_table(lab, width), *next_lines(lab)]


def down_line(lab: Lab, user: str | None, width: int) -> Lines:
    """`user`: what ran on the lab as it was taken down."""
    text = f'Lab "{lab.name}" is down; its {count(lab.spec.nodes, "node")} and links are gone.'
    ended = f" It ended with the lab: {user}." if user else ""
    return paragraph(f"{text}{ended} Runs stay: make runs", width)


def _other_mode(probe: ProbeReport, one: LinkMeasurement) -> LinkMeasurement | None:
    both: Sequence[LinkMeasurement] = [link for link in probe.links if link.mode == "both_ways"]
    return next((link for link in both if (link.src, link.dst) == (one.src, one.dst)), None)


def _limit(bits_per_s: int | None, unit: float) -> str:
    return "none" if bits_per_s is None else f"{bits_per_s / unit:,.10g}"


def _inrate_unit(bytes_per_s: float | None, unit: float) -> str:
    if bytes_per_s is None:
        return "-"
    value = bytes_per_s * 8 / unit
    return number(value, 0 if value >= 1000 else 1 if unit < GIGABIT else 3)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else percent(ratio)


def _times(ratio: float) -> str:
    return f"{number(ratio, 0 if ratio >= 10 else 2)} x"


def _trip(round_trip_s: float | None) -> str:
    return "-" if round_trip_s is None else number(round_trip_s * 1e3, 2)
