"""Each delay goes to one place, on a clock that only sleeping moves."""

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from ddp.timing import Traffic
from jobs import inject
from jobs.data import Batches, Position, Windows
from jobs.errors import JobSpecError
from jobs.inject import Delay, SlowCollective, check_place
from jobs.spec import InjectSpec

Phase = Literal["data", "forward", "backward", "optimizer", "bucket"]
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer", "bucket")


class Clock:
    """Stands in for the `time` module."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


class Recorder:
    """A collective that only notes the buckets it is given."""

    name = "recorder"

    def __init__(self) -> None:
        self.buckets: list[int] = []

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        self.buckets.append(bucket)
        return Traffic(buffer.numel(), segments)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(inject, "time", clock)
    return clock


def slept_by_phase(clock: Clock, delay: Delay) -> dict[str, float]:
    """One step; what was slept in each place of it."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = delay.into_batches(Batches(Windows(bytes(9), 2), 1, 0, 1, seed=0))
    collective = delay.into_collective(Recorder())
    delay.into_model(model)
    delay.into_optimizer(optimizer)
    marks = [clock.slept_s]

    def mark() -> None:
        marks.append(clock.slept_s)

    inputs, _ = batches.next()
    mark()
    loss = model(inputs.float()).sum()
    mark()
    loss.backward()
    mark()
    optimizer.step()
    mark()
    for bucket in range(3):
        collective.all_reduce(torch.zeros(4), 1, bucket)
    mark()
    return {phase: round(marks[at + 1] - marks[at], 6) for at, phase in enumerate(PHASES)}


@pytest.mark.parametrize("phase", PHASES)
def test_exactly_one_place_is_slower(clock: Clock, phase: Phase) -> None:
    delay = Delay(InjectSpec(phase=phase, ms=200, bucket=2 if phase == "bucket" else 0), rank=3)
    expected = {each: 0.2 if each == phase else 0.0 for each in PHASES}
    assert slept_by_phase(clock, delay) == expected


@pytest.mark.parametrize("spec", [None, InjectSpec(phase="forward", ms=200, rank=1)])
def test_other_ranks_and_other_jobs_are_left_alone(clock: Clock, spec: InjectSpec | None) -> None:
    assert set(slept_by_phase(clock, Delay(spec, rank=0)).values()) == {0.0}


def test_the_rank_that_is_meant(clock: Clock) -> None:
    delay = Delay(InjectSpec(phase="data", ms=100, rank=1), rank=1)
    assert slept_by_phase(clock, delay)["data"] == 0.1


@pytest.mark.parametrize(("bucket", "slow"), [(1, True), (0, False), (11, False)])
def test_the_bucket_that_is_meant(clock: Clock, bucket: int, slow: bool) -> None:
    inner = Recorder()
    collective = SlowCollective(inner, bucket=1, delay_s=0.5)
    traffic = collective.all_reduce(torch.zeros(4), 7, bucket)
    assert (traffic, inner.buckets) == (Traffic(4, 7), [bucket])
    assert clock.slept_s == (0.5 if slow else 0.0)
    assert collective.name == "recorder"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (InjectSpec(phase="data", ms=1, rank=4), "inject.rank 4 with 4 ranks"),
        (InjectSpec(phase="bucket", ms=1, bucket=3), "inject.bucket 3 of a model with 3 buckets"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(spec: InjectSpec, told: str) -> None:
    with pytest.raises(JobSpecError, match=told):
        check_place(spec, world_size=4, num_buckets=3)
    check_place(spec, world_size=5, num_buckets=4)


def test_a_slow_batch_is_the_same_batch(clock: Clock) -> None:
    del clock
    plain, wrapped = (Batches(Windows(bytes(range(99)), 4), 2, 0, 1, seed=0) for _ in range(2))
    slow = Delay(InjectSpec(phase="data", ms=1), rank=0).into_batches(wrapped)
    slow.position = plain.position = Position(2, 5)
    assert torch.equal(slow.next()[0], plain.next()[0])
    assert slow.position == plain.position == Position(2, 7)
