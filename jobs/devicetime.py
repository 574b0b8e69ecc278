"""The moments of a step on a GPU: events in line with its work, read once the step is over.

Owns when they are read. The host never waits inside a step; after it, once.
"""

from collections.abc import Sequence

from ddp.device import Anchor, Event, Runtime


class DeviceTimes:
    """Moments are events; each step's are put on CLOCK_MONOTONIC by an anchor at its end."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def now(self) -> Event:
        return self._runtime.record()

    def resolve(self, moments: Sequence[Event]) -> list[int]:
        moments[-1].synchronize()
        anchor = Anchor.take(self._runtime)
        return [anchor.ns(moment) for moment in moments]
