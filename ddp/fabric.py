"""Fabric: which node each rank lives on, and how much the links between ranks can carry.

Owns placement and capacities as plain data. Discovering where ranks really are is not done here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Direction(StrEnum):
    """What a transfer occupies on a node."""

    NIC_OUT = "out"
    NIC_IN = "in"
    INTRA = "intra"


@dataclass(frozen=True)
class Link:
    """One capacity: a fixed cost per dependent stage and a rate shared by all who use it.

    `burst_bytes` pass at once where the link was idle for as long as they take at that rate.
    """

    alpha_s: float
    bytes_per_s: float
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not (self.alpha_s >= 0 and self.bytes_per_s > 0 and self.burst_bytes >= 0):
            raise ValueError(
                f"link with alpha {self.alpha_s} s, {self.bytes_per_s} bytes/s and a burst of "
                f"{self.burst_bytes} bytes: alpha must be at least 0 and the rate above 0, and the "
                "burst at least 0"
            )

    def times(self, count: int) -> "Link":
        """So many of them side by side, for who uses all at once."""
        return Link(self.alpha_s, self.bytes_per_s * count, self.burst_bytes * count)


@dataclass(frozen=True)
class NodeLinks:
    """The capacities of one node: its fabric NIC in each direction, and its inside."""

    nic_out: Link
    nic_in: Link
    intra: Link


@dataclass(frozen=True)
class Fabric:
    """Placement of ranks on nodes: `node_of[rank]` is a node number, in any order.

    `links[node]` prices the node; it is empty where only placement matters.
    Raises ValueError when there is no rank, or links do not cover every node.
    """

    node_of: tuple[int, ...]
    links: tuple[NodeLinks, ...] = ()

    def __post_init__(self) -> None:
        if not self.node_of:
            raise ValueError("a fabric needs at least one rank")
        if min(self.node_of) < 0:
            raise ValueError(f"node numbers start at 0, got {min(self.node_of)}")
        if self.links and max(self.node_of) >= len(self.links):
            raise ValueError(
                f"links for {len(self.links)} nodes do not cover node {max(self.node_of)}"
            )

    @classmethod
    def uniform(
        cls, num_nodes: int, ranks_per_node: int, links: Sequence[NodeLinks] = ()
    ) -> "Fabric":
        """Nodes of equal size, ranks contiguous on nodes."""
        node_of = tuple(node for node in range(num_nodes) for _ in range(ranks_per_node))
        return cls(node_of, tuple(links))

    @property
    def num_ranks(self) -> int:
        return len(self.node_of)

    @property
    def num_nodes(self) -> int:
        """Nodes that have at least one rank."""
        return len(self.groups)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each occupied node, ascending; nodes in order of their number."""
        ranks: dict[int, list[int]] = {node: [] for node in sorted(set(self.node_of))}
        for rank, node in enumerate(self.node_of):
            ranks[node].append(rank)
        return tuple(tuple(group) for group in ranks.values())

    def same_node(self, rank: int, other: int) -> bool:
        return self.node_of[rank] == self.node_of[other]
