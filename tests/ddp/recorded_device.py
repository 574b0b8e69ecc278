"""A device that does everything at once, on the CPU, and says in which order it was asked."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import pytest
import torch
from torch import Tensor

import ddp.placing
from ddp.device import Line, StreamLine
from ddp.native import MakeGroup, Native

COMMUNICATION = "ddp-communication"


@dataclass
class RecordedEvent:
    """`at_ns`: when the device came to it. It is reached at the query of this number."""

    at_ns: int
    polls: int = 1
    said: Callable[[str], None] = lambda _what: None

    def query(self) -> bool:
        self.polls -= 1
        if self.polls <= 0:
            self.said("is there")
        return self.polls <= 0

    def synchronize(self) -> None:
        self.polls = 0

    def elapsed_time(self, later: "RecordedEvent") -> float:
        return (later.at_ns - self.at_ns) / 1e6


@dataclass
class RecordedRuntime:
    """What was asked of the device, by the thread that asked. `now_ns`: its clock."""

    now_ns: Callable[[], int] = monotonic_ns
    polls: int = 1
    said: list[str] = field(default_factory=list)

    def say(self, what: str) -> None:
        communicates = threading.current_thread().name == COMMUNICATION
        self.said.append(f"{'communication' if communicates else 'training'}: {what}")

    def record(self) -> RecordedEvent:
        self.say("record")
        return RecordedEvent(self.now_ns(), self.polls, self.say)

    def note(self) -> None:
        """There is one stream."""

    def gather(self) -> None:
        """Nothing to wait for."""

    def wait(self, event: Any) -> None:
        assert isinstance(event, RecordedEvent)
        self.say("wait for the mark")

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        self.say("on its stream")
        yield
        self.say("off its stream")


class SayingGroup:
    """A group of a real backend, that says what it was asked for."""

    def __init__(self, native: Native, kind: str, say: Callable[[str], None]) -> None:
        self._native, self._kind, self._say = native, kind, say

    def all_reduce(self, tensor: Tensor) -> None:
        self._say(f"all_reduce {self._kind}")
        self._native.all_reduce(tensor)

    def reduce_scatter(self, shard: Tensor, whole: Tensor) -> None:
        self._say(f"reduce_scatter {self._kind}")
        self._native.reduce_scatter(shard, whole)

    def all_gather(self, whole: Tensor, shard: Tensor) -> None:
        self._say(f"all_gather {self._kind}")
        self._native.all_gather(whole, shard)

    def broadcast(self, tensor: Tensor) -> None:
        self._say(f"broadcast {self._kind}")
        self._native.broadcast(tensor)

    def close(self) -> None:
        self._say(f"close {self._kind}")
        self._native.close()


def use(monkeypatch: pytest.MonkeyPatch, runtime: RecordedRuntime) -> None:
    """Every module counts as one on this device, which is the CPU in disguise."""
    gloo_for = ddp.placing.groups_for

    def line_of(
        _device: torch.device, timeout_s: float, why_stopped: Callable[[], str | None]
    ) -> Line:
        return StreamLine(runtime, timeout_s, why_stopped)

    def groups_for(*given: Any) -> MakeGroup:
        make = gloo_for(*given)

        def made(name: str, members: Sequence[int]) -> Native:
            return SayingGroup(make(name, members), name.partition("/")[0], runtime.say)

        return made

    monkeypatch.setattr(ddp.placing, "line_of", line_of)
    monkeypatch.setattr(ddp.placing, "groups_for", groups_for)
