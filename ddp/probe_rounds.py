"""Which links the ranks' own probe measures, and at the same time as which: pure.

Every node is a source and a destination once: one way, then both ways at once, in rounds of
disjoint pairs (an odd node out takes rounds of its own), then inside all nodes at once. As in a
run, all ranks of a node take part, each over a connection of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ddp.fabric import Fabric


class Mode(StrEnum):
    """How a link was used while it was measured."""

    ONE_WAY = "one_way"
    BOTH_WAYS = "both_ways"
    INTRA_NODE = "intra_node"


@dataclass(frozen=True)
class Flow:
    """What goes from one node to one node, or around inside of one: pairs of ranks."""

    src: int
    dst: int
    mode: Mode
    lanes: tuple[tuple[int, int], ...]

    @property
    def alone(self) -> bool:
        return self.mode is Mode.ONE_WAY

    @property
    def name(self) -> str:
        if self.mode is Mode.INTRA_NODE:
            return f"inside node {self.src}"
        return f"node {self.src} -> node {self.dst}"


def rounds(fabric: Fabric) -> list[list[Flow]]:
    """Flows of one round run at the same time; the same on every rank."""
    nodes = sorted(set(fabric.node_of))
    groups = dict(zip(nodes, fabric.groups, strict=True))
    plan = []
    paired = list(_pairs(nodes))
    for pairs in paired:
        plan.append([_between(groups, src, dst, Mode.ONE_WAY) for src, dst in pairs])
        plan.append([_between(groups, dst, src, Mode.ONE_WAY) for src, dst in pairs])
    for pairs in paired:
        ways = [way for src, dst in pairs for way in ((src, dst), (dst, src))]
        plan.append([_between(groups, src, dst, Mode.BOTH_WAYS) for src, dst in ways])
    inside = [_inside(node, group) for node, group in groups.items() if len(group) > 1]
    return [*plan, inside] if inside else plan


def _pairs(nodes: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Rounds of disjoint pairs in which every node occurs; two where their number is odd."""
    if len(nodes) > 1:
        yield [(nodes[k], nodes[k + 1]) for k in range(0, len(nodes) - 1, 2)]
        if len(nodes) % 2:
            yield [(nodes[-1], nodes[0])]


def _between(groups: dict[int, tuple[int, ...]], src: int, dst: int, mode: Mode) -> Flow:
    """A lane for every rank of the larger node; a rank of the smaller one may have several."""
    ours, theirs = groups[src], groups[dst]
    lanes = (
        (ours[lane % len(ours)], theirs[lane % len(theirs)])
        for lane in range(max(len(ours), len(theirs)))
    )
    return Flow(src, dst, mode, tuple(lanes))


def _inside(node: int, group: Sequence[int]) -> Flow:
    """Every rank to the next one."""
    lanes = ((rank, group[(place + 1) % len(group)]) for place, rank in enumerate(group))
    return Flow(node, node, Mode.INTRA_NODE, tuple(lanes))
