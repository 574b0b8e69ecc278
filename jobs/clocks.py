"""How far a rank's CLOCK_MONOTONIC is from rank 0's, measured by question and answer.

Owns the measurement. What readers do with it is `clockshift`'s matter.

Ranks of one kernel and one time namespace have one clock, and ask nobody. Another rank asks rank 0
what time it is, NUM_ASKED times: the answer was given somewhere between question and reply, so the
shortest exchange says most, and is wrong by half of what it took at most.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ddp.transport import Transport
from ddp.transport.p2p import P2PTransport

NUM_ASKED = 24
TAG = 7
TIME_NAMESPACE = Path("/proc/self/ns/time")

Now = Callable[[], int]


@dataclass(frozen=True)
class Offset:
    """What to add to a rank's times so that they are rank 0's, and how wrong that can be."""

    offset_ns: int
    error_ns: int

    def to_json(self) -> dict[str, int]:
        return dict(self.__dict__)


SAME = Offset(0, 0)


@dataclass(frozen=True)
class RankClock:
    """One rank's clock; `asking` are the ranks that have another one than rank 0."""

    rank: int
    asking: tuple[int, ...]
    timeout_s: float

    @classmethod
    def compare(cls, rank: int, world_size: int, timeout_s: float) -> "RankClock":
        """Every rank of the default process group must call it."""
        clocks: list[str] = [""] * world_size
        dist.all_gather_object(clocks, own_clock())
        asking = tuple(peer for peer in range(world_size) if clocks[peer] != clocks[0])
        return cls(rank, asking, timeout_s)

    def measure(self) -> Offset:
        """Every rank must call it at the same point. Raises TransportError."""
        if not self.asking:
            return SAME
        group = dist.group.WORLD
        assert group is not None
        return offset_to_first(P2PTransport(group), self.rank, self.asking, self.timeout_s)


def own_clock() -> str:
    """The same for all who read the same CLOCK_MONOTONIC."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat(TIME_NAMESPACE).st_ino if TIME_NAMESPACE.exists() else 0  # noqa: PTH116
    return f"{boot_id} {namespace}"


def offset_to_first(
    transport: Transport,
    rank: int,
    asking: Sequence[int],
    timeout_s: float,
    now: Now = time.monotonic_ns,
) -> Offset:
    """Rank 0 answers those who ask, one after another; others have nothing to do."""
    if rank == 0:
        for peer in asking:
            _answer(transport, peer, timeout_s, now)
        return SAME
    if rank not in asking:
        return SAME
    return min((_ask(transport, timeout_s, now) for _ in range(NUM_ASKED)), key=_error)


def _answer(transport: Transport, peer: int, timeout_s: float, now: Now) -> None:
    for _ in range(NUM_ASKED):
        transport.recv(torch.zeros(1, dtype=torch.int64), peer, TAG).wait(timeout_s)
        told = torch.tensor([now()], dtype=torch.int64)
        transport.send(told, peer, TAG).wait(timeout_s)


def _ask(transport: Transport, timeout_s: float, now: Now) -> Offset:
    told = torch.zeros(1, dtype=torch.int64)
    answer = transport.recv(told, 0, TAG)
    asked_ns = now()
    transport.send(torch.zeros(1, dtype=torch.int64), 0, TAG).wait(timeout_s)
    answer.wait(timeout_s)
    heard_ns = now()
    middle_ns = (asked_ns + heard_ns) // 2
    return Offset(int(told[0]) - middle_ns, (heard_ns - asked_ns + 1) // 2)


def _error(offset: Offset) -> int:
    return offset.error_ns
