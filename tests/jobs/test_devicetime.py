"""A step on a device that is behind the host: its phases are the device's, on the host's clock."""

from typing import Any

import pytest
import torch
from torch import nn

from ddp import device
from ddp.timing import BucketTiming, StepCommunication, Traffic
from jobs.devicetime import DeviceTimes
from jobs.phases import StepClock
from jobs.train import Trainer
from tests.ddp.recorded_device import RecordedEvent, RecordedRuntime

MS = 1_000_000
APART_NS = 777_777 * MS


class Behind:
    """A device that does what it was given one after another, while the host goes on at once."""

    def __init__(self) -> None:
        self.host_ns, self.done_ns = 40_000 * MS, 40_000 * MS
        self.waits = 0

    def submit(self, milliseconds: int) -> None:
        self.done_ns = max(self.done_ns, self.host_ns) + milliseconds * MS
        self.host_ns += MS // 10

    def monotonic_ns(self) -> int:
        return self.host_ns

    def record(self) -> RecordedEvent:
        device, at_ns = self, max(self.done_ns, self.host_ns)

        class Event(RecordedEvent):
            def synchronize(self) -> None:
                device.waits += 1
                device.host_ns = max(device.host_ns, at_ns)

        return Event(at_ns + APART_NS)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Behind:
    behind = Behind()
    monkeypatch.setattr(device, "monotonic_ns", behind.monotonic_ns)
    return behind


def times(behind: Behind) -> DeviceTimes:
    runtime = RecordedRuntime()
    runtime.record = behind.record  # type: ignore[method-assign]
    return DeviceTimes(runtime)


def test_phases_are_how_long_the_device_took(behind: Behind) -> None:
    behind.submit(5)  # of a step before this one: none of its time is ours
    start_ns = behind.done_ns
    clock = StepClock(times(behind))
    for name, milliseconds in (("data", 2), ("forward", 30), ("backward", 60), ("optimizer", 8)):
        with clock.phase(name):
            behind.submit(milliseconds)
    assert behind.waits == 0
    clock.stop()
    assert behind.waits == 2  # for the end of the step, and for the anchor
    assert clock.start_ns == start_ns
    assert clock.last("backward") == (start_ns + 32 * MS, start_ns + 92 * MS)
    ready, end = start_ns + 82 * MS, start_ns + 92 * MS
    reduced = BucketTiming(0, 8, ready, ready, end)
    seen = StepCommunication([reduced], [(ready, end)], Traffic(1, 2))
    record = clock.record(3, seen, samples=8, loss=1.0, nic_bytes=None)
    assert record.t_ns == start_ns
    found = {
        name: round(getattr(record, f"{name}_s") * 1e3, 6)
        for name in ("step", "data", "forward", "backward", "comm_exposed", "optimizer", "other")
    }
    assert found == {
        "step": 100,
        "data": 2,
        "forward": 30,
        "backward": 50,
        "comm_exposed": 10,
        "optimizer": 8,
        "other": 0,
    }


def test_two_steps_share_no_anchor(behind: Behind) -> None:
    moments = times(behind)
    for _ in range(2):
        clock = StepClock(moments)
        with clock.meeting(4):
            behind.submit(7)
        clock.stop()
        assert clock.end_ns == behind.host_ns == behind.done_ns
        behind.host_ns += MS


def test_batches_go_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is of what was moved; on the CPU nothing is moved."""
    moved: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: moved.append(device) or self * 2)
    inputs = torch.ones(1, 2)

    class Batches:
        def next(self) -> tuple[torch.Tensor, torch.Tensor]:
            return inputs, inputs

    seen: list[Any] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append((outputs.tolist(), targets.tolist()))
        return outputs.sum().requires_grad_()

    module = nn.Identity()
    for place, factor in ((None, 1.0), (torch.device("cuda", 1), 2.0)):
        spec: Any = type("Spec", (), {"accumulate": 1})
        batches: Any = Batches()
        wrapper: Any = module
        trainer = Trainer(wrapper, Any, batches, spec, 1, None, loss=loss, device=place)  # type: ignore[arg-type]
        trainer._micro_step(StepClock(), True)
        assert seen.pop() == ([[factor] * 2], [[factor] * 2])
    assert moved == [torch.device("cuda", 1)] * 2
