"""The flat ring: reduce-scatter in N-1 stages, then all-gather in N-1 stages.

Owns the three orders in which a ring can visit ranks. What an order costs is not decided here.
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import repeat, zip_longest

from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer

RING_ORDERS = ("contiguous", "interleaved", "shuffled")


def ring_for(fabric: Fabric, order: str, seed: int = 0) -> tuple[int, ...]:
    """The ranks in the order in which the ring visits them.

    `contiguous` leaves each node once, however its ranks are numbered; `interleaved` changes node
    at every hop (while nodes last, if they differ in size); `shuffled` is a random order fixed by
    `seed`, the same on every machine. Raises UsageError for another order, or a seed that would
    have no effect.
    """
    if order not in RING_ORDERS:
        raise UsageError(f"ring order {order!r}: choose one of {', '.join(RING_ORDERS)}")
    if seed and order != "shuffled":
        raise UsageError(
            f"ring seed {seed} with ring order {order!r}: only 'shuffled' uses a seed; leave it 0"
        )
    if order == "contiguous":
        return tuple(rank for group in fabric.groups for rank in group)
    if order == "interleaved":
        rounds = zip_longest(*fabric.groups)
        return tuple(rank for members in rounds for rank in members if rank is not None)
    generator = random.Random(seed)
    # Python keeps random() stable across versions, which it does not promise for shuffle()
    keys = [generator.random() for _ in range(fabric.num_ranks)]
    return tuple(sorted(range(fabric.num_ranks), key=keys.__getitem__))


def ring_schedule(order: Sequence[int]) -> Schedule:
    """A ring through `order`, which lists every rank once; one chunk for each rank.

    Chunk c is summed from position c of the ring onwards, and ends complete at position c-1.
    """
    return Schedule(len(order), len(order), "ring", lambda: _stages(order))


def build_ring(fabric: Fabric, ring_order: str, ring_seed: int) -> Schedule:
    return ring_schedule(ring_for(fabric, ring_order, ring_seed))


def _stages(order: Sequence[int]) -> Iterator[Stage]:
    num_ranks = len(order)
    for stage in range(num_ranks - 1):
        yield _pass_on(order, -stage, reduce=True)
    for stage in range(num_ranks - 1):
        yield _pass_on(order, 1 - stage, reduce=False)


def _pass_on(order: Sequence[int], offset: int, *, reduce: bool) -> Stage:
    """Position p hands chunk p + offset to the next position."""
    num_ranks = len(order)
    following = (*order[1:], order[0])
    first = offset % num_ranks
    chunks = (*range(first, num_ranks), *range(first))
    return tuple(map(Transfer._make, zip(order, following, chunks, repeat(reduce))))
