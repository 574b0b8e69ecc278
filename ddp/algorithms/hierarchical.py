"""Hierarchical all-reduce: add up inside each node, ring across nodes, share inside each node.

Owns the shape of the hierarchy for nodes of any size, with ranks anywhere. Groups come from where
ranks are (Fabric.groups), never from arithmetic on rank numbers.

With K ranks on the largest of M nodes, a buffer is cut into K shards of M chunks. In each node one
member owns each shard (some own several, where the node is smaller than K). Every node sends
2(M-1)/M of the buffer, the least that an all-reduce can send, spread over all its members and
evenly over the stages; chunk c of a shard is summed from node c onwards.

    stages    inside nodes                               between nodes
    1         an owner adds its shard from its peers
    M-1                                                  ring reduce-scatter of each shard
    M         an owner shares the chunk last completed   ring all-gather of each shard (M-1)

Sharing runs beside the all-gather, so that of one segment only the additions inside the node and
the sharing of the last chunk leave the NICs idle; the stages of other segments fill those.
In the field: Horovod's torus all-reduce; reduce-scatter, all-reduce, all-gather.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ddp.algorithms.algorithm import require_no_order
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer


def hierarchical_schedule(groups: tuple[tuple[int, ...], ...]) -> Schedule:
    """A schedule for `groups[node] = ranks`, which together hold every rank once."""
    hierarchy = _Hierarchy(groups, num_shards=max(map(len, groups)))
    num_chunks = hierarchy.num_shards * len(groups)
    return Schedule(sum(map(len, groups)), num_chunks, "hierarchical", hierarchy.stages)


def build_hierarchical(fabric: Fabric, ring_order: str, ring_seed: int) -> Schedule:
    require_no_order(
        "hierarchical", "its rings have one rank a node, in node order", ring_order, ring_seed
    )
    return hierarchical_schedule(fabric.groups)


@dataclass(frozen=True)
class _Hierarchy:
    groups: tuple[tuple[int, ...], ...]
    num_shards: int

    def stages(self) -> Iterator[Stage]:
        num_nodes = len(self.groups)
        if self.num_shards > 1:
            yield tuple(self._add_inside())
        for stage in range(num_nodes - 1):
            yield tuple(self._send_across(-stage, reduce=True))
        for stage in range(num_nodes):
            offset = 1 - stage
            across = () if stage == num_nodes - 1 else self._send_across(offset, reduce=False)
            transfers = (*across, *self._share_inside(offset))
            if transfers:  # with one rank a node there is nobody to share the last chunk with
                yield transfers

    def _add_inside(self) -> Iterator[Transfer]:
        """Each owner adds the shards it owns from the members after it, one after another."""
        for group in self.groups:
            for shard, distance in product(range(self.num_shards), range(1, len(group))):
                peer, owner = self._owner(group, shard + distance), self._owner(group, shard)
                for index in range(len(self.groups)):
                    yield Transfer(peer, owner, self._chunk(shard, index), reduce=True)

    def _send_across(self, offset: int, *, reduce: bool) -> Iterator[Transfer]:
        """Each owner hands one chunk of its shards to their owner in the next node."""
        for node, group in enumerate(self.groups):
            following = self.groups[(node + 1) % len(self.groups)]
            for shard in range(self.num_shards):
                src, dst = self._owner(group, shard), self._owner(following, shard)
                yield Transfer(src, dst, self._chunk(shard, node + offset), reduce)

    def _share_inside(self, offset: int) -> Iterator[Transfer]:
        """Each owner hands the same chunk to every other member of its node."""
        for node, group in enumerate(self.groups):
            for shard in range(self.num_shards):
                owner = self._owner(group, shard)
                chunk = self._chunk(shard, node + offset)
                yield from (Transfer(owner, rank, chunk, False) for rank in group if rank != owner)

    def _owner(self, group: tuple[int, ...], shard: int) -> int:
        return group[shard % len(group)]

    def _chunk(self, shard: int, index: int) -> int:
        num_nodes = len(self.groups)
        return shard * num_nodes + index % num_nodes
