"""How each contender reduces a buffer of each size: which schedule, in how many segments.

Owns the choice and what is made of it; runs on the ranks. Times nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor

from ddp.algorithms import AUTO, find_algorithm, hierarchical_schedule, ring_schedule
from ddp.auto import choose
from ddp.cost import inter_node_bound, payload_bytes
from ddp.executor import Collective, make_collective
from ddp.fabric import Fabric
from ddp.fixed import FixedCost, in_a_row, price_of
from ddp.membership import Membership, PrivateGroup
from ddp.plan import choose_segments
from ddp.schedule import Schedule
from jobs.bench.asked import BASE, Contender
from jobs.predict import GLOO_SEGMENTS

MEETINGS = 2  # the first after a barrier still has its skew


@dataclass(frozen=True)
class Place:
    """All ranks in the order of one placement, and what connects them. `rank` is this one's."""

    rank: int
    fabric: Fabric
    """Where ranks are."""
    priced: Fabric | None
    """The same with what its links carry; None where that was not measured."""
    group: PrivateGroup
    timeout_s: float

    @cached_property
    def _meeting(self) -> tuple[Collective, Tensor]:
        schedule = hierarchical_schedule(self.fabric.groups)
        collective = make_collective(
            "hierarchical", schedule, self.rank, self.fabric, self.group, self.timeout_s
        )
        return collective, self.group.allocate(1, torch.float32)

    def _meet(self) -> None:
        """Return nearer to the same moment than the backend's barrier does."""
        collective, word = self._meeting
        for _ in range(MEETINGS):
            collective.all_reduce(word, 1, 0)

    def begin(self) -> None:
        """Return when all ranks have come, at about the same moment."""
        dist.barrier()
        self._meet()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Nobody begins before all have come, nor goes on before all have ended."""
        self.begin()
        yield
        dist.barrier()


def open_place(
    rank: int,
    own_fabric: Fabric,
    node_of: Sequence[int],
    timeout_s: float,
    *,
    shares_memory: bool,
) -> tuple[int, Fabric, PrivateGroup]:
    """This rank's number where ranks are on nodes `node_of`, and a group in which it has it.

    A process stays on its node: the k-th of a node becomes the k-th of those placed there.
    """
    node = own_fabric.node_of[rank]
    place = [each for each in range(rank) if own_fabric.node_of[each] == node]
    here = [each for each, at in enumerate(node_of) if at == node]
    membership = Membership(None, timeout_s)
    membership.rank = here[len(place)]
    fabric, group = Fabric(tuple(node_of)), membership.connect()
    try:
        group.open_transport(fabric, shares_memory=shares_memory)
    except BaseException:
        group.close()
        raise
    return membership.rank, fabric, group


@dataclass(frozen=True)
class Way:
    """What reduces buffers of one size for one contender; `algorithm` does it in the end."""

    name: str
    """The algorithm's, with the order where it is a ring in another one than usual."""
    algorithm: str
    segments: int
    schedule: Schedule | None
    """None for native."""
    collective: Collective
    place: Place

    @cached_property
    def priced(self) -> tuple[Schedule, int]:
        """What is sent, stage by stage, and in how many parts at once."""
        if self.schedule is None:  # gloo's own all_reduce is one ring in rank order
            return ring_schedule(range(self.place.fabric.num_ranks)), GLOO_SEGMENTS
        return self.schedule, self.segments

    def predicted_s(self, size_bytes: int, cost: FixedCost | None) -> float | None:
        """Of one in a turn; None where the links were not measured. The all-reduces of a turn share
        what idle links let through at once.
        """
        schedule, segments = self.priced
        fabric, share = self.place.priced, 1 / in_a_row(size_bytes)
        if fabric is None:
            return None
        return price_of(cost, schedule, fabric, size_bytes, segments, share).seconds

    def sent_bytes(self, size_bytes: int, item_bytes: int) -> int:
        """What the busiest node sends to others."""
        schedule, segments = self.priced
        numel = size_bytes // item_bytes
        sent = payload_bytes(schedule, self.place.fabric, numel, item_bytes, segments)
        return max(sent.values())


def limit_s(priced: Fabric | None, size_bytes: int) -> float | None:
    """How long the least bytes that a node must send keep the slowest NIC busy."""
    if priced is None or priced.num_nodes == 1:
        return None
    nodes = [priced.links[node] for node in sorted(set(priced.node_of))]
    rate = min(min(node.nic_out.bytes_per_s, node.nic_in.bytes_per_s) for node in nodes)
    return inter_node_bound(size_bytes, priced.num_nodes) / rate


def ways_of(contender: Contender, place: Place, sizes_bytes: Sequence[int]) -> dict[int, Way]:
    """By size; every rank of the place must call this with the same, at the same point."""
    collectives: dict[str, tuple[Schedule | None, Collective]] = {}
    ways = {}
    for size, (algorithm, segments) in _choices(contender, place, sizes_bytes).items():
        if algorithm not in collectives:
            collectives[algorithm] = _make(algorithm, contender, place)
        schedule, collective = collectives[algorithm]
        name = contender.model_copy(update={"algorithm": algorithm}).name
        ways[size] = Way(name, algorithm, segments, schedule, collective, place)
    return ways


def _choices(
    contender: Contender, place: Place, sizes_bytes: Sequence[int]
) -> dict[int, tuple[str, int]]:
    """Algorithm and segments by size. `auto` measures first, as a job does that asks for it."""
    name = contender.algorithm
    if name == AUTO:
        fabric = place.priced or place.fabric
        return dict(choose(place.group, fabric, sizes_bytes, place.timeout_s))
    return {
        size: (name, choose_segments(name, size, place.fabric.num_nodes)) for size in sizes_bytes
    }


def _make(algorithm: str, contender: Contender, place: Place) -> tuple[Schedule | None, Collective]:
    build = find_algorithm(algorithm).build
    schedule = build(place.fabric, contender.ring_order, 0) if build else None
    collective = make_collective(
        algorithm, schedule, place.rank, place.fabric, place.group, place.timeout_s
    )
    assert schedule or algorithm == BASE
    return schedule, collective
