"""Recursive doubling: log2 N stages, in each of which pairs exchange all they have.

Neighbours first, then ranks two places apart, four places apart, ...: after stage k each rank has
the sum of 2^(k+1). Both ranks of a pair add the same two numbers, so that all end with the same
bits. A node sends much, log2(M) times its ranks times the buffer, in as few messages one after
another as an all-reduce can have: for small buffers. For powers of two only. In the field: the
short-message all-reduce of MPICH and Open MPI.
"""

from collections.abc import Iterator, Sequence

from ddp.algorithms.algorithm import require_no_order, require_pairs
from ddp.algorithms.ring import ring_for
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer


def recursive_doubling_schedule(order: Sequence[int]) -> Schedule:
    """For the ranks in `order`, each once; the buffer is one chunk.

    Raises UsageError where their number is no power of two.
    """
    num_ranks = len(order)
    require_pairs("recursive_doubling", num_ranks)
    return Schedule(num_ranks, 1, "recursive_doubling", lambda: _stages(order))


def build_recursive_doubling(fabric: Fabric, ring_order: str, ring_seed: int) -> Schedule:
    require_no_order("recursive_doubling", "it has no ring", ring_order, ring_seed)
    return recursive_doubling_schedule(ring_for(fabric, "contiguous"))


def _stages(order: Sequence[int]) -> Iterator[Stage]:
    for stage in range((len(order) - 1).bit_length()):
        yield tuple(
            Transfer(rank, order[place ^ 1 << stage], 0, reduce=True)
            for place, rank in enumerate(order)
        )
