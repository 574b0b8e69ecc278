"""Recursive halving, then doubling: 2 log2 N stages instead of a ring's 2(N-1).

Neighbours exchange halves first, then ranks two places apart quarters, four places apart eighths,
...; then the same way back. Places follow the nodes, so that the large parts stay inside a node:
with a power of two of ranks on each of M nodes, a node sends 2(M-1)/M of the buffer, the least that
an all-reduce can. For powers of two only. In the field: Rabenseifner, "Optimization of collective
reduction operations", 2004; MPICH's and gloo's halving_doubling.
"""

from collections.abc import Iterator, Sequence

from ddp.algorithms.algorithm import require_no_order, require_pairs
from ddp.algorithms.ring import ring_for
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer


def halving_doubling_schedule(order: Sequence[int]) -> Schedule:
    """For the ranks in `order`, each once; one chunk for each. At stage k place p keeps what its
    bit k says of what it had: the lower half for 0, the upper for 1.

    Raises UsageError where their number is no power of two.
    """
    num_ranks = len(order)
    require_pairs("halving_doubling", num_ranks)
    return Schedule(num_ranks, num_ranks, "halving_doubling", lambda: _stages(order))


def build_halving_doubling(fabric: Fabric, ring_order: str, ring_seed: int) -> Schedule:
    require_no_order("halving_doubling", "it has no ring", ring_order, ring_seed)
    return halving_doubling_schedule(ring_for(fabric, "contiguous"))


def _stages(order: Sequence[int]) -> Iterator[Stage]:
    num_stages = (len(order) - 1).bit_length()
    for stage in range(num_stages):
        yield _exchange(order, stage, reduce=True)
    for stage in reversed(range(num_stages)):
        yield _exchange(order, stage, reduce=False)


def _exchange(order: Sequence[int], stage: int, *, reduce: bool) -> Stage:
    """Each place and the one 2^stage away: what the other keeps, or what it has kept."""
    num_ranks = len(order)
    return tuple(
        Transfer(order[place], order[place ^ 1 << stage], chunk, reduce)
        for place in range(num_ranks)
        for chunk in _kept(place ^ 1 << stage if reduce else place, stage + 1, num_ranks)
    )


def _kept(place: int, num_stages: int, num_ranks: int) -> range:
    """The chunks that a place keeps after so many halvings."""
    low, high = 0, num_ranks
    for stage in range(num_stages):
        middle = (low + high) // 2
        low, high = (middle, high) if place >> stage & 1 else (low, middle)
    return range(low, high)
