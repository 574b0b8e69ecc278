"""Groups of a torch backend that are ours alone: NCCL between GPUs, gloo in tests.

Owns how torch's backends are made and called for collectives that are theirs, and how such a group
ends. Which ranks make a group together, and in which order, is the caller's matter.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, Store

from ddp.errors import TransportError
from ddp.transport.p2p import translate

WATCHDOG = 2
"""NCCL's own watchdog ends the process, so it comes by so many times later than our own limit."""


class Native(Protocol):
    """The collectives of one group, whose members give tensors of one device. They are in line on
    the current stream when a call returns; only `ddp.device` knows when they are done.
    """

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over the group, in place."""

    def reduce_scatter(self, shard: Tensor, whole: Tensor) -> None:
        """Put this member's share of the sum of `whole` into `shard`, which may be its place."""

    def all_gather(self, whole: Tensor, shard: Tensor) -> None:
        """Put the shards of all members into `whole`, end to end."""

    def broadcast(self, tensor: Tensor) -> None:
        """Give `tensor` the values that the group's first member has."""

    def close(self) -> None:
        """End it, also in the middle of a collective. A second call does nothing."""


MakeGroup = Callable[[str, Sequence[int]], Native]
"""A group of these ranks, all of which call it, by a name that is used once."""


class BackendGroup:
    """A group over a backend of torch (ProcessGroupNCCL, ProcessGroupGloo)."""

    def __init__(self, backend: Any) -> None:
        self._backend: Any = backend

    def all_reduce(self, tensor: Tensor) -> None:
        with self._open() as backend:
            backend.allreduce([tensor], dist.AllreduceOptions()).wait()

    def reduce_scatter(self, shard: Tensor, whole: Tensor) -> None:
        with self._open() as backend:
            backend._reduce_scatter_base(shard, whole, dist.ReduceScatterOptions()).wait()

    def all_gather(self, whole: Tensor, shard: Tensor) -> None:
        with self._open() as backend:
            backend._allgather_base(whole, shard, AllgatherOptions()).wait()

    def broadcast(self, tensor: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        with self._open() as backend:
            backend.broadcast([tensor], options).wait()

    def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None and hasattr(backend, "abort"):
            backend.abort()  # what peers do not answer would keep the device busy for ever

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if self._backend is None:
            raise TransportError("the connections to all peers are closed")
        try:
            yield self._backend
        except RuntimeError as exc:
            raise translate(exc) from exc


def gloo_groups(store: Store, rank: int, timeout_s: float) -> MakeGroup:
    """Groups over gloo, which reduce tensors of the CPU."""

    def make(name: str, members: Sequence[int]) -> Native:
        place, timeout = members.index(rank), timedelta(seconds=timeout_s)
        try:
            gloo = dist.ProcessGroupGloo(PrefixStore(name, store), place, len(members), timeout)
        except RuntimeError as exc:
            raise TransportError(
                f"rank {rank} could not connect to its peers: {translate(exc)}"
            ) from exc
        return BackendGroup(gloo)

    return make


def nccl_groups(store: Store, rank: int, timeout_s: float) -> MakeGroup:
    """Groups over NCCL, on the current GPU. Raises TransportError where torch has no NCCL."""

    def make(name: str, members: Sequence[int]) -> Native:
        if not dist.is_nccl_available():
            raise TransportError("this torch was built without NCCL: install one for CUDA")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=WATCHDOG * timeout_s)
        place = members.index(rank)
        try:
            nccl = dist.ProcessGroupNCCL(PrefixStore(name, store), place, len(members), options)
        except RuntimeError as exc:
            raise TransportError(f"rank {rank} could not start NCCL: {translate(exc)}") from exc
        return BackendGroup(nccl)

    return make
