"""How the ranks of a job find one another: a store at rank 0, then the process group.

Owns addresses, the NIC that gloo uses, and the message when a rank does not come.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from ddp.errors import DdpError
from ddp.failure import leave_together
from jobs.argument import RankArgument
from jobs.errors import WorkerError
from jobs.rankwords import ranks_words


@contextmanager
def rendezvous(told: RankArgument) -> Iterator[Store]:
    """Joins the job's default process group and leaves it at the end; yields the store.

    Raises WorkerError, naming the NIC or the ranks that are missing, when it cannot be joined.
    """
    _check_interface(told.interface)
    with joined(told, _open_store(told, timedelta(seconds=told.job.ddp.timeout_s))) as store:
        yield store


@contextmanager
def joined(told: RankArgument, store: Store) -> Iterator[Store]:
    """The same, where the store is there already."""
    os.environ["GLOO_SOCKET_IFNAME"] = told.interface
    timeout = timedelta(seconds=told.job.ddp.timeout_s)
    try:
        _wait_for_all(told, store, timeout)
        _connect(told, store, timeout)
        yield store
    except DdpError:
        raise  # ddp has stayed for the peers
    except Exception:
        leave_together(store, told.rank, told.world_size)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _check_interface(interface: str) -> None:
    present = sorted(name for _, name in socket.if_nameindex())
    if interface not in present:
        raise WorkerError(
            f"network interface {interface!r}: not on this node",
            rule="ranks talk through the NIC that owns the node's fabric address",
            fix=f"choose one of {', '.join(present)}",
        )


def _open_store(told: RankArgument, timeout: timedelta) -> TCPStore:
    try:
        return TCPStore(
            told.master_addr,
            told.master_port,
            is_master=told.rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=told.listen_fd if told.rank == 0 else None,
        )
    except (RuntimeError, ValueError) as exc:
        raise WorkerError(
            f"rank {told.rank}: no rendezvous at {told.master_addr}:{told.master_port}",
            rule="rank 0 listens there and every rank can reach it",
            fix="look at the log of rank 0; ddplab probe measures the links",
            seen=str(exc).partition("\n")[0],
        ) from exc


def _wait_for_all(told: RankArgument, store: Store, timeout: timedelta) -> None:
    joined = [f"joined/{rank}" for rank in range(told.world_size)]
    store.set(joined[told.rank], told.node_name)
    try:
        store.wait(joined, timeout)
    except RuntimeError as exc:
        raise WorkerError(
            f"{_missing(store, joined)} did not come within {timeout.total_seconds():g} s",
            rule=f"all {told.world_size} ranks start together",
            fix="look at the logs of those ranks",
        ) from exc


def _missing(store: Store, joined: Sequence[str]) -> str:
    try:
        return ranks_words([rank for rank, key in enumerate(joined) if not store.check([key])])
    except RuntimeError:  # rank 0 gave up first, and its store with it
        return "some ranks"


def _connect(told: RankArgument, store: Store, timeout: timedelta) -> None:
    try:
        dist.init_process_group(
            "gloo", store=store, rank=told.rank, world_size=told.world_size, timeout=timeout
        )
    except RuntimeError as exc:
        raise WorkerError(
            f"rank {told.rank} ({told.node_name}) could not connect to its peers",
            rule="every rank can reach every other through its fabric NIC",
            fix="look at the logs of the other ranks; ddplab probe measures the links",
            seen=str(exc).partition("\n")[0],
        ) from exc
