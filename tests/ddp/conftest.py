"""Ranks for tests: processes joined by gloo on 127.0.0.1, and threads joined by memory.

Processes are forked, so that a rank's body may be a closure and starts at once.
"""

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddp.errors import TransportError
from ddp.executor import ScheduledCollective
from ddp.fabric import Fabric
from ddp.schedule import Schedule
from ddp.timing import Traffic
from ddp.transport import Transport
from ddp.transport.memory import MemoryNetwork

Body = Callable[[int], Any]
FORK = multiprocessing.get_context("fork")
STORE_TIMEOUT = timedelta(seconds=20)


@dataclass(frozen=True)
class Outcome:
    """What a rank's body returned, or how it ended."""

    value: Any = None
    error: str = ""
    message: str = ""
    exit_code: int | None = 0


class Ranks:
    """Starts processes and kills those that are left."""

    def __init__(self) -> None:
        self.processes: list[BaseProcess] = []

    def run(self, num_ranks: int, body: Body, *, timeout_s: float = 60) -> list[Any]:
        """The values that `body(rank)` returned, by rank; fails where one of them raised."""
        outcomes = self.outcomes(num_ranks, body, timeout_s=timeout_s)
        for rank, outcome in enumerate(outcomes):
            assert not outcome.error, f"rank {rank}: {outcome.message}"
            assert outcome.exit_code == 0, f"rank {rank} ended with {outcome.exit_code}"
        return [outcome.value for outcome in outcomes]

    def outcomes(self, num_ranks: int, body: Body, *, timeout_s: float = 60) -> list[Outcome]:
        port: Any = FORK.SimpleQueue()
        pipes = [FORK.Pipe(duplex=False) for _ in range(num_ranks)]
        started = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside torch's threads
            for rank, (_, sender) in enumerate(pipes):
                process = FORK.Process(target=_rank, args=(rank, num_ranks, port, sender, body))
                process.start()
                started.append(process)
        self.processes += started
        for _, sender in pipes:
            sender.close()
        deadline = monotonic() + timeout_s
        receivers = [receiver for receiver, _ in pipes]
        return [
            _outcome(process, receiver, deadline - monotonic())
            for process, receiver in zip(started, receivers, strict=True)
        ]

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


def _outcome(process: BaseProcess, receiver: Connection, timeout_s: float) -> Outcome:
    ready = wait([receiver, process.sentinel], max(timeout_s, 0.01))
    if not ready:
        return Outcome(error="TimeoutError", message="the rank did not end", exit_code=None)
    try:
        outcome = receiver.recv()
    except EOFError:
        outcome = Outcome(error="", message="")
    process.join()
    return Outcome(outcome.value, outcome.error, outcome.message, process.exitcode)


def _rank(rank: int, num_ranks: int, port: Any, sender: Connection, body: Body) -> None:
    signal.alarm(110)  # an orphan ends by itself
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = _store(rank, num_ranks, port)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=num_ranks, timeout=STORE_TIMEOUT
        )
        outcome = Outcome(body(rank))
        dist.barrier()
    except BaseException as exc:
        traceback.print_exc()
        outcome = Outcome(error=type(exc).__name__, message=str(exc))
    sender.send(outcome)
    sender.close()
    if rank == 0 and not outcome.error:
        dist.destroy_process_group()
    os._exit(0)


def _store(rank: int, num_ranks: int, port: Any) -> dist.TCPStore:
    options = {"timeout": STORE_TIMEOUT, "wait_for_workers": False}
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, num_ranks, is_master=True, **options)
        for _ in range(num_ranks - 1):
            port.put(store.port)
        return store
    return dist.TCPStore("127.0.0.1", port.get(), num_ranks, is_master=False, **options)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Processes, one a rank; killed at the end of the test whatever happens."""
    started = Ranks()
    try:
        yield started
    finally:
        started.kill()


def run_threads(num_ranks: int, body: Body) -> list[Any]:
    values: list[Any] = [None] * num_ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            values[rank] = body(rank)
        except BaseException as exc:
            errors.append(exc)

    workers = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert not worker.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return values


@pytest.fixture
def in_memory() -> Callable[..., tuple[list[Tensor], list[Traffic]]]:
    """`run_in_memory`, for the tests of several files."""
    return run_in_memory


def run_in_memory(
    schedule: Schedule,
    fabric: Fabric,
    buffers: list[Tensor],
    segments: int,
    *,
    seed: int = 0,
    max_delay_s: float = 0.0,
    wrap: Callable[[int, Transport], Transport] = lambda _rank, transport: transport,
    scribble: bool = False,
) -> tuple[list[Tensor], list[Traffic]]:
    """All ranks in threads. `scribble`: overwrite each buffer as soon as its all_reduce returns."""
    network = MemoryNetwork(fabric.num_ranks, seed, max_delay_s)
    results = [buffer.clone() for buffer in buffers]

    def body(rank: int) -> tuple[Tensor, Traffic]:
        transport = wrap(rank, network.transport(rank))
        collective = ScheduledCollective(schedule, rank, fabric, transport, timeout_s=10)
        try:
            traffic = collective.all_reduce(results[rank], segments, 0)
        except TransportError:
            network.leave(rank)  # so that nobody waits for it
            raise
        result = results[rank].clone()
        if scribble:
            results[rank].fill_(float("nan"))
        transport.close()
        return result, traffic

    ended = run_threads(fabric.num_ranks, body)
    return [result for result, _ in ended], [traffic for _, traffic in ended]
