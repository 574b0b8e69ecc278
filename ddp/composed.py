"""All-reduces made of a backend's own collectives, for devices whose bytes it sends, not we.

Owns the composition of `hierarchical` and the bytes it comes to. Every rank makes its groups and
calls their collectives in one order: inside its node, between nodes, inside again. A rank is in
one group of each kind, and a group's members all wait for the same one, so nobody waits in a ring.
"""

from collections import Counter

import torch
from torch import Tensor

from ddp.errors import TransportError, UsageError
from ddp.fabric import Fabric
from ddp.native import MakeGroup, Native
from ddp.timing import Traffic


class BackendReduce:
    """`native`: the all_reduce of the backend, over all ranks. What it sends is not known."""

    name = "native"

    def __init__(self, everybody: Native) -> None:
        self._everybody = everybody

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:  # noqa: ARG002
        if buffer.numel():
            with _Named(bucket, "the backend's all_reduce"):
                self._everybody.all_reduce(as_real(buffer))
        return Traffic(None, None)


class ComposedHierarchical:
    """`hierarchical`: a reduce_scatter inside each node, for each shard an all_reduce between the
    ranks that hold it, an all_gather inside. One all_reduce at a time.

    Shards are equal: a buffer whose length does not divide evenly goes through one that is padded.
    Raises UsageError unless all nodes have as many ranks.
    """

    name = "hierarchical"

    def __init__(self, fabric: Fabric, rank: int, make_group: MakeGroup) -> None:
        require_equal_nodes(fabric)
        nodes = fabric.groups
        own = next(node for node in nodes if rank in node)
        self._place, self._num_shards = own.index(rank), len(own)
        self._num_nodes = len(nodes)
        same_shard = [node[self._place] for node in nodes]
        self._inside = make_group(f"inside/{own[0]}", own) if len(own) > 1 else None
        self._across = (
            make_group(f"across/{self._place}", same_shard) if len(same_shard) > 1 else None
        )
        self._padded = torch.empty(0)

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:  # noqa: ARG002
        flat = as_real(buffer)
        if not flat.numel():
            return Traffic(0, 0)
        whole = self._divisible(flat)
        numel = whole.numel() // self._num_shards
        shard = whole[self._place * numel : (self._place + 1) * numel]
        if self._inside:
            with _Named(bucket, "reduce_scatter inside the node"):
                self._inside.reduce_scatter(shard, whole)
        if self._across:
            with _Named(bucket, "all_reduce between nodes"):
                self._across.all_reduce(shard)
        if self._inside:
            with _Named(bucket, "all_gather inside the node"):
                self._inside.all_gather(whole, shard)
        if whole is not flat:
            flat.copy_(whole[: flat.numel()])
        return self._traffic(shard.nbytes)

    def close(self) -> None:
        """End both groups."""
        for group in (self._inside, self._across):
            if group:
                group.close()

    def _divisible(self, flat: Tensor) -> Tensor:
        """`flat`, or a longer one that begins with the same and can be cut into equal shards."""
        missing = -flat.numel() % self._num_shards
        if not missing:
            return flat
        numel = flat.numel() + missing
        kept = self._padded
        if kept.numel() < numel or kept.dtype != flat.dtype or kept.device != flat.device:
            self._padded = flat.new_empty(numel)
        padded = self._padded[:numel]
        padded[: flat.numel()].copy_(flat)
        padded[flat.numel() :].zero_()
        return padded

    def _traffic(self, shard_bytes: int) -> Traffic:
        """What our own schedule sends for such shards: each to all others inside the node, and
        back; between nodes a ring, 2(M-1)/M of a shard."""
        inside = 2 * (self._num_shards - 1) * shard_bytes
        across = 2 * (self._num_nodes - 1) * shard_bytes // self._num_nodes
        return Traffic(inside, across)


def require_equal_nodes(fabric: Fabric) -> None:
    """Raises UsageError, with the first two nodes that differ."""
    counts = Counter(fabric.node_of)
    (first, size), *others = sorted(counts.items())
    for node, other in others:
        if other != size:
            raise UsageError(
                f"node {first} has {size} ranks and node {node} has {other}: on this device "
                "hierarchical needs as many on every node; start as many on each, or use "
                "algorithm='native'"
            )


def as_real(buffer: Tensor) -> Tensor:
    """The same memory as one row of real numbers, which sum alike."""
    return torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer


class _Named:
    """Inside, an error of the backend gets the bucket and the stage that it concerns."""

    def __init__(self, bucket: int, stage: str) -> None:
        self._where = f"bucket {bucket}, {stage}"

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, TransportError):
            raise type(error)(f"{self._where}: {error}") from error
