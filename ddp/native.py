"""Groups of a torch backend that are ours alone: NCCL between GPUs, gloo in tests.

Owns how torch's backends are made and called for collectives that are theirs, and how such a group
ends. Which ranks make a group together, and in which order, is the caller's matter.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from time import monotonic
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, Store

from ddp.errors import TransportError
from ddp.transport.p2p import translate

WATCHDOG = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
BEYOND_OURS_S = 600.0
"""NCCL's own limits come so much later than ours, which say what was waited for."""
CLOSE_S = 10.0


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


def nccl_groups(gpu: torch.device, store: Store, rank: int, timeout_s: float) -> MakeGroup:
    """Groups over NCCL for tensors of `gpu`. Raises TransportError where torch has no NCCL."""

    def make(name: str, members: Sequence[int]) -> Native:
        if not dist.is_nccl_available():
            raise TransportError("this torch was built without NCCL: install one for CUDA")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s + BEYOND_OURS_S)
        place = members.index(rank)
        try:
            with _without_watchdog():
                nccl = dist.ProcessGroupNCCL(PrefixStore(name, store), place, len(members), options)
            nccl.eager_connect_single_device(gpu)  # here, and not within the first bucket
        except RuntimeError as exc:
            raise TransportError(f"rank {rank} could not start NCCL: {translate(exc)}") from exc
        return BackendGroup(nccl)

    return make


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Inside, NCCL's groups are made so that their watchdog ends no process: it would, where a peer
    is gone, before the first cause is told. torchrun asks for the other kind.
    """
    before = os.environ.get(WATCHDOG)
    os.environ[WATCHDOG] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[WATCHDOG]
        else:
            os.environ[WATCHDOG] = before


def close_all(groups: Sequence[Native]) -> None:
    """All at once: the end of one may wait for what another has on the device, and that only ends
    with its own (pytorch/pytorch#119797).
    """
    threads = [Thread(target=group.close, name="ddp-close", daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    deadline = monotonic() + CLOSE_S
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
