"""The star: rank 0 takes every rank's gradients, adds them up, and sends the sum back to each.

Owns its two halves; rank 0 adds in the order of ranks. All bytes go through the NIC of rank 0's
node: (N-L) x the buffer in and out, where L of the N ranks live there. In the field: parameter
server (Li et al., "Scaling distributed machine learning with the parameter server", 2014).
"""

from collections.abc import Iterator

from ddp.algorithms.algorithm import require_no_order
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer

ROOT = 0
WHOLE = 0  # the only chunk


def parameter_server_schedule(num_ranks: int) -> Schedule:
    """One rank after the other is added at rank 0, which then sends to all at once."""
    return Schedule(num_ranks, 1, "parameter_server", lambda: _stages(num_ranks))


def build_parameter_server(fabric: Fabric, ring_order: str, ring_seed: int) -> Schedule:
    require_no_order("parameter_server", "it has no ring", ring_order, ring_seed)
    return parameter_server_schedule(fabric.num_ranks)


def _stages(num_ranks: int) -> Iterator[Stage]:
    others = range(1, num_ranks)
    for rank in others:
        yield (Transfer(rank, ROOT, WHOLE, reduce=True),)
    if others:
        yield tuple(Transfer(ROOT, rank, WHOLE, reduce=False) for rank in others)
