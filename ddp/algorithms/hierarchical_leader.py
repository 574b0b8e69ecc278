"""The hierarchy with one representative a node: reduce to it, ring among them, broadcast from it.

The simplest form of a hierarchy, and what it costs to be so simple: a node sends the least that an
all-reduce can, 2(M-1)/M of the buffer, but one rank sends all of it while its node's others wait,
and inside a node the whole buffer goes to, and comes from, one rank. `hierarchical` shares both
over all ranks. In the field: a leader for each node; reduce, all-reduce, broadcast.
"""

from collections.abc import Iterator

from ddp.algorithms.algorithm import require_no_order
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer

Groups = tuple[tuple[int, ...], ...]


def hierarchical_leader_schedule(groups: Groups) -> Schedule:
    """A schedule for `groups[node] = ranks`; the first of each represents it. One chunk a node.

    A leader adds its node's ranks in their order. Chunk c of M is then summed from node c onwards.
    """
    num_ranks = sum(map(len, groups))
    return Schedule(num_ranks, len(groups), "hierarchical_leader", lambda: _stages(groups))


def build_hierarchical_leader(fabric: Fabric, ring_order: str, ring_seed: int) -> Schedule:
    require_no_order(
        "hierarchical_leader", "its ring has one rank a node, in node order", ring_order, ring_seed
    )
    return hierarchical_leader_schedule(fabric.groups)


def _stages(groups: Groups) -> Iterator[Stage]:
    num_nodes = len(groups)
    leaders = [group[0] for group in groups]
    up = [(rank, group[0]) for group in groups for rank in group[1:]]
    if up:
        yield _whole_buffer(up, num_nodes, reduce=True)
    for stage in range(num_nodes - 1):
        yield _pass_on(leaders, -stage, reduce=True)
    for stage in range(num_nodes - 1):
        yield _pass_on(leaders, 1 - stage, reduce=False)
    if up:
        down = [(leader, rank) for rank, leader in up]
        yield _whole_buffer(down, num_nodes, reduce=False)


def _whole_buffer(pairs: list[tuple[int, int]], num_chunks: int, *, reduce: bool) -> Stage:
    return tuple(
        Transfer(src, dst, chunk, reduce) for src, dst in pairs for chunk in range(num_chunks)
    )


def _pass_on(leaders: list[int], offset: int, *, reduce: bool) -> Stage:
    """The leader of node k hands chunk k + offset to the next one."""
    num_nodes = len(leaders)
    return tuple(
        Transfer(leader, leaders[(node + 1) % num_nodes], (node + offset) % num_nodes, reduce)
        for node, leader in enumerate(leaders)
    )
