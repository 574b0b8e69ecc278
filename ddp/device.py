"""When a bucket is reduced on its device: after what fills it, and with an end the host waits for.

Owns the order between the thread that trains and the communication thread, where both only submit
work that a device does later; and the times of that work. On the CPU both are there at once.

A mark says how far the thread that trains has come; nobody waits for it on the host. The
communication thread has a stream of its own: behind a bucket's mark it submits the reduction, and
waits for its end before the next. So one bucket is reduced at a time, in one order on all ranks,
and its status is read when it is there.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from time import monotonic, monotonic_ns, sleep
from typing import Any, Protocol, Self

import torch

from ddp.errors import PeerTimeout, TransportError
from ddp.timing import BucketTiming, StepCommunication

POLL_S = 50e-6
LOOK_S = 0.2
"""So often a rank that waits for its device looks whether another one has stopped."""


class Event(Protocol):
    """A place in a device's work, as torch.cuda.Event."""

    def query(self) -> bool:
        """Whether the device has come so far."""

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from this event to a later one; below 0 to an earlier one."""


class Runtime(Protocol):
    """What is used of a device and of the stream that is for communication."""

    def record(self) -> Event:
        """A place behind all that this thread has submitted to its current stream."""

    def note(self) -> None:
        """What this thread submits to its current stream goes into buckets."""

    def gather(self) -> None:
        """Let the current stream go on after all that was submitted to streams that were noted."""

    def wait(self, event: Any) -> None:
        """Let the current stream go on after `event`; the host does not wait."""

    def on_stream(self) -> AbstractContextManager[Any]:
        """Inside, the current stream is the one for communication."""


class Span(Protocol):
    """One bucket's time on its device."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def times(self, ready_ns: int) -> tuple[int, int, int]:
        """When it was ready, began and ended. `ready_ns`: when the host says that it was ready."""


class Line(Protocol):
    """The order of work on one device. `on_host`: each call is done when it returns."""

    on_host: bool

    def gradient(self) -> int:
        """One was computed, wherever the current stream is; when, as the host sees it."""

    def mark(self) -> Any:
        """On the thread that trains: what follows `after` this waits for all gradients so far."""

    def after(self, mark: Any, bucket: int) -> Span:
        """Around the reduction of a bucket; at its end the bucket is there. Raises PeerTimeout,
        and TransportError where another rank has stopped meanwhile."""

    def settle(self, what: str) -> None:
        """Wait until the device has done what was submitted. Raises as `after` does."""

    def seen(self, step: StepCommunication) -> StepCommunication:
        """`step`, whose buckets have device times, with the rest in device times too."""


class _HostSpan:
    def __enter__(self) -> Self:
        self._start_ns = monotonic_ns()
        return self

    def __exit__(self, *error: object) -> None: ...

    def times(self, ready_ns: int) -> tuple[int, int, int]:
        return ready_ns, self._start_ns, monotonic_ns()


class HostLine:
    """The CPU: nothing is ever under way."""

    on_host = True

    def gradient(self) -> int:
        return monotonic_ns()

    def mark(self) -> None:
        return None

    def after(self, mark: Any, bucket: int) -> Span:  # noqa: ARG002
        return _HostSpan()

    def settle(self, what: str) -> None:
        pass

    def seen(self, step: StepCommunication) -> StepCommunication:
        return step


@dataclass(frozen=True)
class Anchor:
    """One moment on both clocks, the device's and CLOCK_MONOTONIC."""

    event: Event
    at_ns: int

    @classmethod
    def take(cls, runtime: Runtime) -> "Anchor":
        """Now, on the current stream, which must have nothing left to do."""
        before_ns = monotonic_ns()
        event = runtime.record()
        event.synchronize()
        return cls(event, (before_ns + monotonic_ns()) // 2)

    def ns(self, event: Event) -> int:
        """When the device came to `event`, which it has."""
        return self.at_ns + round(self.event.elapsed_time(event) * 1e6)


class StreamLine:
    """A device with streams. `why_stopped`: why some rank has stopped, None while none has."""

    on_host = False

    def __init__(
        self, runtime: Runtime, timeout_s: float, why_stopped: Callable[[], str | None]
    ) -> None:
        self.runtime = runtime
        self._timeout_s = timeout_s
        self._why_stopped = why_stopped
        self.anchor: Anchor | None = None

    def gradient(self) -> int:
        self.runtime.note()
        return monotonic_ns()

    def mark(self) -> Event:
        self.runtime.gather()
        return self.runtime.record()

    def after(self, mark: Event, bucket: int) -> Span:
        return _StreamSpan(self, mark, bucket)

    def settle(self, what: str) -> None:
        self.wait(self.runtime.record(), what)

    def seen(self, step: StepCommunication) -> StepCommunication:
        """What the host waits for while buckets are reduced says nothing: it is computing, too.
        Other waits, as for buffers between two steps, are what they are.
        """
        return replace(
            step,
            exposed=[*waits_beside(step), *exposed_of(step.buckets)],
            gradients_ready_ns=max((bucket.ready_ns for bucket in step.buckets), default=None),
        )

    def wait(self, event: Event, what: str) -> None:
        """On the host; not for ever, as a peer that has gone leaves its collective open."""
        start = monotonic()
        look_at = start + LOOK_S
        while not event.query():
            now = monotonic()
            if now > start + self._timeout_s:
                raise PeerTimeout(f"{what}: not done after {self._timeout_s:g} s")
            if now > look_at:
                if self._why_stopped() is not None:
                    raise TransportError(f"{what}: another rank has stopped")
                look_at = now + LOOK_S
            sleep(POLL_S)


class _StreamSpan:
    def __init__(self, line: StreamLine, mark: Event, bucket: int) -> None:
        self._line, self._mark, self._bucket = line, mark, bucket
        self._inside = ExitStack()

    def __enter__(self) -> Self:
        runtime = self._line.runtime
        self._inside.enter_context(runtime.on_stream())
        if self._bucket == 0 or self._line.anchor is None:  # a step begins
            self._line.anchor = Anchor.take(runtime)
        self._anchor = self._line.anchor
        runtime.wait(self._mark)
        self._start = runtime.record()
        return self

    def __exit__(self, *error: object) -> None:
        with self._inside:
            if error[0] is None:
                self._end = self._line.runtime.record()
                self._line.wait(self._end, f"bucket {self._bucket}")

    def times(self, ready_ns: int) -> tuple[int, int, int]:  # noqa: ARG002
        ready, start, end = map(self._anchor.ns, (self._mark, self._start, self._end))
        return ready, start, end


class CudaRuntime:
    """A GPU, with a stream of ours. `cuda`: torch.cuda, or what stands in for it.

    A model may compute on several streams; those on which gradients came stay noted.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)
        self._noted: set[Any] = set()

    def record(self) -> Event:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        placed: Event = event
        return placed

    def note(self) -> None:
        self._noted.add(self._cuda.current_stream(self._device))

    def gather(self) -> None:
        current = self._cuda.current_stream(self._device)
        for other in self._noted:
            if other != current:
                current.wait_stream(other)

    def wait(self, event: Any) -> None:
        self._cuda.current_stream(self._device).wait_event(event)

    def on_stream(self) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = self._cuda.stream(self._stream)
        return stream


def line_of(device: torch.device, timeout_s: float, why_stopped: Callable[[], str | None]) -> Line:
    """The line of work on `device`."""
    if device.type == "cpu":
        return HostLine()
    return StreamLine(CudaRuntime(device), timeout_s, why_stopped)


def exposed_of(buckets: Sequence[BucketTiming]) -> list[tuple[int, int]]:
    """For each reduction in turn: from when its last gradient was there to its end."""
    exposed: list[tuple[int, int]] = []
    for bucket in buckets:
        before = (0, 0) if bucket.index == 0 or not exposed else exposed.pop()
        exposed.append((max(before[0], bucket.ready_ns), max(before[1], bucket.end_ns)))
    return exposed


def waits_beside(step: StepCommunication) -> list[tuple[int, int]]:
    """Waits of the host in whose time no bucket was on its way."""
    return [
        (start_ns, end_ns)
        for start_ns, end_ns in step.exposed
        if not any(start_ns < each.end_ns and each.start_ns < end_ns for each in step.buckets)
    ]
