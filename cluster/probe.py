"""Measures the links of a lab, and refuses what does not carry what was asked.

Owns the report and its judgement. Which flows are measured is `cluster.probe_plan`'s matter, how
bytes are sent `cluster.probe_end`'s.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor, log10
from typing import Any

from cluster.errors import ProbeFailed
from cluster.nodes import Node, Nodes
from cluster.probe_plan import Flow, Mode, both_ways_ceiling, rounds
from cluster.probe_run import ProbeEnds
from cluster.spec import ClusterSpec
from cluster.units import format_rate

TOLERANCE = 0.03
ATTEMPTS, FAR_ATTEMPTS, FAR = 3, 2, 0.2
"""A link that once carries its ceiling can carry it: a busy machine only takes away. So a link that
is off is measured again, twice when it is near, once when it is off by more than a fifth."""
SCHEMA = 1


@dataclass(frozen=True)
class LinkMeasurement:
    """One link as measured; None is `not limited`, so that there is no ceiling to compare with."""

    src: str
    dst: str
    mode: str
    configured_bits_per_second: int | None
    measured_bytes_per_second: float
    ceiling_bytes_per_second: float | None
    ratio: float | None
    round_trip_s: float | None

    @property
    def off_by(self) -> float:
        """How far from its ceiling; 0 where there is none."""
        return 0.0 if self.ratio is None else abs(self.ratio - 1)

    @property
    def ok(self) -> bool:
        return self.off_by <= TOLERANCE


@dataclass(frozen=True)
class ProbeReport:
    """All links, and the wall clock (seconds since 1970) when they were measured."""

    links: tuple[LinkMeasurement, ...]
    measured_at: float

    @property
    def ok(self) -> bool:
        return all(link.ok for link in self.links)

    def find(self, mode: str, src: str) -> LinkMeasurement | None:
        """The measurement of this mode that leaves this node."""
        found = (link for link in self.links if link.mode == mode and link.src == src)
        return next(found, None)

    def to_json(self) -> dict[str, Any]:
        links = [asdict(link) for link in self.links]
        return {"schema": SCHEMA, "ok": self.ok, "links": links, "measured_at": self.measured_at}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ProbeReport":
        links = tuple(LinkMeasurement(**link) for link in data["links"])
        return cls(links, data["measured_at"])


def run_probe(nodes: Nodes, spec: ClusterSpec, intra: bool = True) -> ProbeReport:
    """Measures each node out and in, one way and both ways, and (`intra`) its inside.

    Raises NodeError when an end cannot be reached. Judging is `require_carried`'s matter.
    """
    links: list[LinkMeasurement] = []
    with ProbeEnds(nodes) as ends:
        plan = rounds(spec, nodes.list(), intra)
        trips = _round_trips(ends, plan)
        for flows in plan:
            found = measure_round(ends, flows, trips)
            for attempt in range(1, ATTEMPTS):
                off = max(link.off_by for link in found.values())
                if off <= TOLERANCE or (off > FAR and attempt >= FAR_ATTEMPTS):
                    break
                again = measure_round(ends, flows, trips)
                found = {flow: _better(found[flow], again[flow]) for flow in flows}
            links += found.values()
    return ProbeReport(tuple(links), time.time())


def _round_trips(ends: ProbeEnds, plan: Sequence[Sequence[Flow]]) -> dict[tuple[Node, Node], float]:
    """All of them before the first flow: what a flow leaves in a queue would be waited for."""
    ways = dict.fromkeys((flow.src, flow.dst) for flows in plan for flow in flows)
    return {(src, dst): ends.ping(src, dst) for src, dst in ways}


def measure_round(
    ends: ProbeEnds, flows: Sequence[Flow], trips: Mapping[tuple[Node, Node], float]
) -> dict[Flow, LinkMeasurement]:
    """What flows carry that run at the same time; `trips` are the round trips that are known."""
    measured = ends.measure(flows)
    back = {(flow.dst, flow.src): seen.acknowledgements_per_s for flow, seen in measured.items()}
    return {
        flow: _link(
            flow,
            measured[flow].bytes_per_s,
            back.get((flow.src, flow.dst)),
            trips.get((flow.src, flow.dst)),
        )
        for flow in flows
    }


def _link(
    flow: Flow, bytes_per_s: float, acknowledgements_per_s: float | None, round_trip_s: float | None
) -> LinkMeasurement:
    ceiling = flow.ceiling_bytes_per_s
    if flow.mode is Mode.BOTH_WAYS:
        ceiling = both_ways_ceiling(flow, acknowledgements_per_s or 0.0)
    return LinkMeasurement(
        src=flow.src.name,
        dst=flow.dst.name,
        mode=flow.mode.value,
        configured_bits_per_second=flow.rate_bits_per_s,
        measured_bytes_per_second=bytes_per_s,
        ceiling_bytes_per_second=ceiling,
        ratio=None if ceiling is None else bytes_per_s / ceiling,
        round_trip_s=round_trip_s,
    )


def _better(one: LinkMeasurement, other: LinkMeasurement) -> LinkMeasurement:
    return min(one, other, key=lambda link: link.off_by)


def require_carried(report: ProbeReport, advice: str | None = None) -> None:
    """Raises ProbeFailed unless every limited link is within 3 % of what it should carry.

    `advice` says what to ask for instead, where somebody tried.
    """
    bad = [link for link in report.links if not link.ok]
    if not bad:
        return
    seen = "; ".join(_shown(link) for link in bad)
    slow = [link for link in bad if link.ratio is not None and link.ratio < 1]
    if not slow:
        raise ProbeFailed(
            "a link carries more than it was limited to",
            f"a link is within {TOLERANCE:.0%} of what it can carry",
            "bring the lab down and up again; report it if it stays so",
            seen=seen,
        )
    worst = min(slow, key=lambda link: link.ratio or 0)
    least = min(link.measured_bytes_per_second * 8 for link in slow)
    raise ProbeFailed(
        f"this machine carried only {_mbit(worst.measured_bytes_per_second)} "
        f"where a link was to carry {_mbit(worst.ceiling_bytes_per_second or 0)} "
        f"(limit {format_rate(worst.configured_bits_per_second)})",
        f"a lab is up only when every link is within {TOLERANCE:.0%} of what it can carry",
        (
            advice or _less(worst.mode, _rounded_down(least)),
            "end what else keeps this machine busy, and try again",
        ),
        seen=seen,
    )


def _less(mode: str, bits_per_s: int) -> str:
    if mode == Mode.INTRA_NODE:
        return f"links.intra_node.rate: {format_rate(bits_per_s)} in the cluster's file"
    return f"ask for less: RATE={format_rate(bits_per_s)}"


def _shown(link: LinkMeasurement) -> str:
    arrow = {"one_way": " -> ", "both_ways": " <-> "}.get(link.mode)
    name = f"{link.src}{arrow}{link.dst}" if arrow else f"inside {link.src}"
    can = _mbit(link.ceiling_bytes_per_second or 0)
    measured = _mbit(link.measured_bytes_per_second)
    limit = format_rate(link.configured_bits_per_second)
    return f"{name}: limit {limit}, can carry {can}, measured {measured} ({link.ratio or 0:.0%})"


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e6:,.1f} Mbit/s"


def _rounded_down(bits_per_s: float) -> int:
    """Two digits below nine tenths, so that the next try has room."""
    value = max(bits_per_s * 0.9, 1e6)
    step = 10 ** (floor(log10(value)) - 1)
    return int(value // step * step)
