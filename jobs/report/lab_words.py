"""A lab, its links and a time of day in a few words: what every screen calls them."""

from datetime import datetime

from cluster.lab import Lab
from cluster.probe import ProbeReport
from cluster.spec import ClusterSpec
from jobs.report.text import count, significant

GIGABIT = 1e9


def rate_words(bits_per_s: float | None) -> str:
    """A rate as people say it: `200 Mbit/s`, `1 Gbit/s`, `no limit`."""
    if bits_per_s is None:
        return "no limit"
    unit, size = ("Gbit/s", GIGABIT) if bits_per_s >= GIGABIT else ("Mbit/s", 1e6)
    return f"{bits_per_s / size:,.10g} {unit}"


def clock(wall_s: float) -> str:
    """`11:02`, local time; with the day when it was not today."""
    then = datetime.fromtimestamp(wall_s).astimezone()
    today = then.date() == datetime.now().astimezone().date()
    return then.strftime("%H:%M" if today else "%H:%M on %d %B")


def lab_words(lab: Lab) -> str:
    """`2 nodes x 2 ranks, 200 Mbit/s (measured 191 at 11:02)`."""
    words = f"{size_words(lab.spec)}, {rates_words(lab.spec)}"
    slowest = slowest_rate(lab.probe)
    if lab.probe is None or slowest is None:
        return f"{words} ({unproven_words(lab)})" if lab.spec.nodes > 1 else words
    name, unit = rate_unit(lab.spec)
    measured = significant(slowest * 8 / unit)
    if lab.spec.links.inter_node.rate_bits_per_s is None:
        measured += f" {name}"
    which = "slowest link measured" if lab.spec.overrides else "measured"
    return f"{words} ({which} {measured} at {clock(lab.probe.measured_at)})"


def rates_words(spec: ClusterSpec) -> str:
    """`200 Mbit/s; node1 50 Mbit/s`: the links between nodes, then those that differ."""
    usual = spec.links.inter_node.rate_bits_per_s
    words = [rate_words(usual)]
    for node in spec.overrides:
        rate = spec.links_of(node).inter_node.rate_bits_per_s
        words += [f"{node} {rate_words(rate)}"] if rate != usual else []
    insides = [spec.links_of(node).intra_node.rate_bits_per_s for node in spec.node_names]
    limited = [rate for rate in insides if rate is not None]
    words += [f"inside a node {rate_words(min(limited))}"] if limited else []
    return "; ".join(words)


def unproven_words(lab: Lab) -> str:
    """Why it is not known what the links carry: `not measured`, or `changed at 11:02, ...`."""
    if lab.proof == "stale" and lab.changed_at is not None:
        return f"changed at {clock(lab.changed_at)}, not measured since"
    return "not measured"


def size_words(spec: ClusterSpec) -> str:
    """`2 nodes x 2 ranks`, and what the programs of a node are limited to."""
    limits = f" ({words} a node)" if (words := spec.limits.describe()) else ""
    return f"{count(spec.nodes, 'node')} x {count(spec.ranks_per_node, 'rank')}{limits}"


def slowest_rate(probe: ProbeReport | None) -> float | None:
    """Bytes per second of the slowest link between nodes, measured one way."""
    links = [link for link in probe.links if link.mode == "one_way"] if probe else []
    return min((link.measured_bytes_per_second for link in links), default=None)


def rate_unit(spec: ClusterSpec) -> tuple[str, float]:
    """The unit the screen speaks: that of the links between nodes."""
    rate = spec.links.inter_node.rate_bits_per_s
    return ("Gbit/s", GIGABIT) if rate is None or rate >= GIGABIT else ("Mbit/s", 1e6)
