"""What the probe measures, in which rounds, and what a link should carry: pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.nodes import Node
from cluster.shaping import burst_bytes
from cluster.spec import (
    ETHERNET_BYTES,
    LOOPBACK_MTU,
    TCP_HEADER_BYTES,
    ClusterSpec,
    payload_ceiling,
)

SKIP_S = 0.2
MEASURE_S = 0.7
INTRA_SKIP_S = 0.05
INTRA_MEASURE_S = 0.2
UNEQUAL_SKIP_S = 1.0
UNEQUAL_MEASURE_S = 1.5
"""A fast sender fills the queue of a slow node first, and every round trip lasts as long."""
PACE = 0.99
"""Both ways between unequal ends, the fast one sends no more than the slow one can take: its queue
would drop the acknowledgements of the other direction. One way, nothing is held back."""
MIN_PACKETS = 300
LONGEST_S = 5.0


class Mode(StrEnum):
    ONE_WAY = "one_way"
    BOTH_WAYS = "both_ways"
    INTRA_NODE = "intra_node"


@dataclass(frozen=True)
class Flow:
    """One stream to measure; `rate_bits_per_s` is None where nothing limits it.

    `ceiling_bytes_per_s` is the payload it carries alone; None also where loss is asked for.
    """

    src: Node
    dst: Node
    mode: Mode
    rate_bits_per_s: int | None
    ceiling_bytes_per_s: float | None
    mtu: int
    delay_s: float = 0.0
    unequal: bool = False
    """Whether its ends have different rates."""
    pace_bytes_per_s: float = 0.0
    """How fast the source sends at most; 0: as fast as the link takes it."""

    @property
    def name(self) -> str:
        if self.mode is Mode.INTRA_NODE:
            return f"inside {self.src.name}"
        arrow = "->" if self.mode is Mode.ONE_WAY else "<->"
        return f"{self.src.name} {arrow} {self.dst.name}"

    @property
    def order(self) -> Mapping[str, float]:
        """What both ends are told: how much to leave out, and how long to measure."""
        skip_s, measure_s = SKIP_S + 20 * self.delay_s, MEASURE_S
        if self.unequal:
            skip_s, measure_s = skip_s + UNEQUAL_SKIP_S, UNEQUAL_MEASURE_S
        elif self.rate_bits_per_s is None and self.mode is Mode.INTRA_NODE:
            skip_s, measure_s = INTRA_SKIP_S, INTRA_MEASURE_S
        order = {
            "skip_s": skip_s,
            "skip_bytes": 0.0,
            "measure_s": measure_s,
            "measure_bytes": 0.0,
            "pace_bytes_per_s": self.pace_bytes_per_s,
        }
        if self.rate_bits_per_s is not None:
            order["skip_bytes"] = 3.0 * burst_bytes(self.rate_bits_per_s)
            most = self.rate_bits_per_s / 8 * LONGEST_S
            order["measure_bytes"] = min(float(MIN_PACKETS * self.mtu), most)
        return order


def both_ways_ceiling(flow: Flow, acknowledgements_per_s: float) -> float | None:
    """TCP payload/s of one direction while both are full.

    The direction also carries the acknowledgements of the other: packets of headers only, counted
    as they are sent (the kernel acknowledges from every second packet to every fortieth). So
    `ceiling x (1 - acknowledgements/s x 66 bytes / rate)`.
    """
    if flow.ceiling_bytes_per_s is None or flow.rate_bits_per_s is None:
        return None
    taken = acknowledgements_per_s * (TCP_HEADER_BYTES + ETHERNET_BYTES)
    return flow.ceiling_bytes_per_s * (1 - taken / (flow.rate_bits_per_s / 8))


def pairs(nodes: Sequence[Node]) -> list[list[tuple[Node, Node]]]:
    """Rounds of disjoint pairs in which every node occurs; two rounds where their number is odd."""
    if len(nodes) < 2:
        return []
    first = [(nodes[k], nodes[k + 1]) for k in range(0, len(nodes) - 1, 2)]
    return [first, [(nodes[-1], nodes[0])]] if len(nodes) % 2 else [first]


def rounds(spec: ClusterSpec, nodes: Sequence[Node], intra: bool = True) -> list[list[Flow]]:
    """All rounds: each node once as source and once as destination alone, then both at once.

    Flows of one round run at the same time and share no node; insides go one after another.
    """
    plan = []
    for round_ in pairs(nodes):
        plan.append([_between(spec, src, dst, Mode.ONE_WAY) for src, dst in round_])
        plan.append([_between(spec, dst, src, Mode.ONE_WAY) for src, dst in round_])
    for round_ in pairs(nodes):
        ways = [way for src, dst in round_ for way in ((src, dst), (dst, src))]
        plan.append([_between(spec, src, dst, Mode.BOTH_WAYS) for src, dst in ways])
    if intra:
        plan += [[_inside(spec, node)] for node in nodes]
    return plan


def _between(spec: ClusterSpec, src: Node, dst: Node, mode: Mode) -> Flow:
    out = spec.links_of(src.name).inter_node
    back = spec.links_of(dst.name).inter_node
    rates = [rate for rate in (out.rate_bits_per_s, back.rate_bits_per_s) if rate is not None]
    rate = min(rates, default=None)
    mtu = min(out.mtu, back.mtu)
    lossy = out.loss_ratio or back.loss_ratio
    ceiling = None if lossy else payload_ceiling(rate, mtu)
    delay_s = out.delay_s + back.delay_s
    unequal = out.rate_bits_per_s != back.rate_bits_per_s
    pace = 0.0
    if mode is Mode.BOTH_WAYS and unequal and rate != out.rate_bits_per_s:
        pace = PACE * (payload_ceiling(rate, mtu) or 0.0)
    return Flow(src, dst, mode, rate, ceiling, mtu, delay_s, unequal, pace)


def _inside(spec: ClusterSpec, node: Node) -> Flow:
    rate = spec.links_of(node.name).intra_node.rate_bits_per_s
    ceiling = payload_ceiling(rate, LOOPBACK_MTU)
    return Flow(node, node, Mode.INTRA_NODE, rate, ceiling, LOOPBACK_MTU)
