"""The clock of one training step on one rank: when each phase ran, and what that adds up to.

Owns how a step's time is shared out. Waiting for peers is taken out of the phase it happened in.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ddp.timing import BucketTiming
from jobs.derive import Interval, common, length
from jobs.errors import WorkerError
from jobs.records import StepRecord
from jobs.wrapper import Communication

PHASES = ("data", "forward", "backward", "optimizer")


class Times(Protocol):
    """Where the moments of a step come from: what computes it, which may be behind the host."""

    def now(self) -> Any:
        """The moment at which all that was submitted so far is done."""

    def resolve(self, moments: Sequence[Any]) -> list[int]:
        """CLOCK_MONOTONIC nanoseconds of these moments; the last one is behind all others."""


class HostTimes:
    """The CPU's, where a moment is over when it is taken."""

    def now(self) -> int:
        return time.monotonic_ns()

    def resolve(self, moments: Sequence[int]) -> list[int]:
        return list(moments)


class StepClock:
    """Starts when made; `phase(name)` measures a phase, as often as it comes. Times are known after
    `stop`.
    """

    def __init__(self, times: Times | None = None) -> None:
        self._times: Times = times or HostTimes()
        self._intervals: dict[str, list[Interval]] = defaultdict(list)
        self._meetings: list[BucketTiming] = []
        self._names: list[str | int] = []
        self._moments = [self._times.now()]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self._times.now()
        yield
        self._moments += [start, self._times.now()]
        self._names.append(name)

    @contextmanager
    def meeting(self, index: int) -> Iterator[None]:
        """Inside, this rank waits for all others. Kept as a bucket of no bytes with this number, so
        that readers tell waiting for a slower rank from waiting for the network.
        """
        start = self._times.now()
        yield
        self._moments += [start, self._times.now()]
        self._names.append(index)

    def stop(self) -> None:
        """The step is over: all its moments are known now."""
        self._moments.append(self._times.now())
        self.start_ns, *inside, self.end_ns = self._times.resolve(self._moments)
        intervals = zip(inside[::2], inside[1::2], strict=True)
        for name, (start_ns, end_ns) in zip(self._names, intervals, strict=True):
            if isinstance(name, str):
                self._intervals[name].append((start_ns, end_ns))
            else:
                self._meetings.append(BucketTiming(name, 0, start_ns, start_ns, end_ns))

    def last(self, name: str) -> Interval:
        """When the phase last ran."""
        return self._intervals[name][-1]

    def record(
        self,
        step: int,
        communication: Communication,
        samples: int,
        loss: float | None,
        nic_bytes: tuple[int, int] | None,
    ) -> StepRecord:
        """The step as it is written down; `nic_bytes` are what the NIC sent and received."""
        step_s = (self.end_ns - self.start_ns) / 1e9
        met = [(meeting.start_ns, meeting.end_ns) for meeting in self._meetings]
        exposed = [*communication.exposed, *met]
        exposed_s = common([(self.start_ns, self.end_ns)], exposed) / 1e9
        phase_s = {name: self._without(name, exposed) for name in PHASES}
        sent, received = nic_bytes or (None, None)
        return StepRecord(
            step=step,
            t_ns=self.start_ns,
            step_s=step_s,
            data_s=phase_s["data"],
            forward_s=phase_s["forward"],
            backward_s=phase_s["backward"],
            comm_exposed_s=exposed_s,
            optimizer_s=phase_s["optimizer"],
            other_s=step_s - exposed_s - sum(phase_s.values()),
            exposed=tuple(exposed),
            buckets=self._buckets(communication),
            intra_node_bytes=communication.traffic.intra_node_bytes,
            inter_node_bytes=communication.traffic.inter_node_bytes,
            samples=samples,
            loss=loss,
            nic_tx_bytes=sent,
            nic_rx_bytes=received,
        )

    def _buckets(self, communication: Communication) -> tuple[BucketTiming, ...] | None:
        told = communication.buckets
        return None if told is None else (*told, *self._meetings)

    def _without(self, name: str, exposed: list[Interval]) -> float:
        intervals = self._intervals[name]
        return (length(intervals) - common(intervals, exposed)) / 1e9


class NicCounters:
    """What the kernel counts on one NIC: bytes with all their headers, every process together."""

    def __init__(self, interface: str) -> None:
        folder = Path("/sys/class/net") / interface / "statistics"
        self._files = (folder / "tx_bytes", folder / "rx_bytes")
        self._first = self._last = self._read()

    def since_last(self) -> tuple[int, int]:
        """Bytes sent and received since the last call, so that calls add up to the total."""
        before, self._last = self._last, self._read()
        return self._last[0] - before[0], self._last[1] - before[1]

    def leave_out(self) -> None:
        """What was carried since the last reading counts nowhere: it was not ours."""
        read = self._read()
        sent, received = read[0] - self._last[0], read[1] - self._last[1]
        self._first = self._first[0] + sent, self._first[1] + received
        self._last = read

    def total(self) -> tuple[int, int]:
        """Bytes sent and received since this was made."""
        sent, received = self._read()
        return sent - self._first[0], received - self._first[1]

    def _read(self) -> tuple[int, int]:
        try:
            sent, received = (int(path.read_text()) for path in self._files)
        except (OSError, ValueError) as exc:
            raise WorkerError(
                f"{self._files[0].parent}: {exc}",
                rule="the fabric NIC's own counters are read at every step",
                fix="name a network interface of this node",
            ) from exc
        return sent, received
