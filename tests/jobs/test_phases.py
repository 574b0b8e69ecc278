"""A step's time is shared out on a clock that only the test moves."""

from pathlib import Path

import pytest

from ddp.timing import BucketTiming, StepCommunication, Traffic
from jobs import phases
from jobs.errors import WorkerError
from jobs.phases import NicCounters, StepClock
from jobs.records import StepRecord

MS = 1_000_000


class Clock:
    """Stands in for the `time` module."""

    def __init__(self) -> None:
        self.now_ns = 10_000 * MS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def advance(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(phases, "time", clock)
    return clock


def step(clock: Clock, *script: tuple[str | None, int]) -> StepClock:
    """Phases one after another; None is time in no phase."""
    timed = StepClock()
    for phase, milliseconds in script:
        if phase is None:
            clock.advance(milliseconds)
        else:
            with timed.phase(phase):
                clock.advance(milliseconds)
    timed.stop()
    return timed


def recorded(timed: StepClock, *exposed: tuple[int, int]) -> StepRecord:
    """The record, where `exposed` are milliseconds from the start of the step."""
    intervals = [(timed.start_ns + a * MS, timed.start_ns + b * MS) for a, b in exposed]
    communication = StepCommunication([], intervals, Traffic(3, 4))
    return timed.record(7, communication, samples=8, loss=1.5, nic_bytes=None)


def phase_ms(record: StepRecord) -> dict[str, int]:
    names = ("step", "data", "forward", "backward", "comm_exposed", "optimizer", "other")
    return {name: round(getattr(record, f"{name}_s") * 1e3) for name in names}


SCRIPT = (("data", 1), ("forward", 20), ("backward", 40), (None, 2), ("optimizer", 5))


def test_phases_are_measured_and_the_rest_is_other(clock: Clock) -> None:
    assert phase_ms(recorded(step(clock, *SCRIPT))) == {
        "step": 68,
        "data": 1,
        "forward": 20,
        "backward": 40,
        "comm_exposed": 0,
        "optimizer": 5,
        "other": 2,
    }


@pytest.mark.parametrize(
    ("exposed", "changed"),
    [
        ([(50, 60)], {"backward": 30, "comm_exposed": 10}),
        ([(50, 57), (55, 60)], {"backward": 30, "comm_exposed": 10}),  # only once
        ([(5, 10)], {"forward": 15, "comm_exposed": 5}),  # a buffer broadcast
        ([(15, 25)], {"forward": 14, "backward": 36, "comm_exposed": 10}),
        ([(61, 63)], {"other": 0, "comm_exposed": 2}),  # between phases
        ([(63, 68)], {"optimizer": 0, "comm_exposed": 5}),
        ([(-10, 0), (68, 80)], {}),  # outside the step
        ([(60, 100)], {"backward": 39, "optimizer": 0, "other": 0, "comm_exposed": 8}),
    ],
)
def test_waiting_for_peers_is_taken_out_of_its_phase(
    clock: Clock, exposed: list[tuple[int, int]], changed: dict[str, int]
) -> None:
    timed = step(clock, *SCRIPT)
    undisturbed = phase_ms(recorded(timed))
    record = recorded(timed, *exposed)
    assert phase_ms(record) == {**undisturbed, **changed}
    parts = phase_ms(record)
    assert parts.pop("step") == sum(parts.values())


def test_micro_steps_add_up(clock: Clock) -> None:
    micro = (("data", 1), ("forward", 10), ("backward", 20))
    timed = step(clock, *micro, *micro, ("optimizer", 3))
    parts = phase_ms(recorded(timed))
    assert (parts["data"], parts["forward"], parts["backward"]) == (2, 20, 40)
    start, end = timed.last("backward")
    assert ((start - timed.start_ns) // MS, (end - start) // MS) == (42, 20)


def test_the_rest_of_the_record(clock: Clock) -> None:
    timed = step(clock, *SCRIPT)
    bucket = BucketTiming(0, 64, 1, 2, 3)
    communication = StepCommunication([bucket], [(4, 5)], Traffic(None, None))
    record = timed.record(7, communication, samples=8, loss=None, nic_bytes=(11, 12))
    assert (record.step, record.t_ns, record.samples) == (7, timed.start_ns, 8)
    assert (record.buckets, record.exposed) == ((bucket,), ((4, 5),))
    assert (record.intra_node_bytes, record.inter_node_bytes) == (None, None)
    assert (record.nic_tx_bytes, record.nic_rx_bytes, record.loss) == (11, 12, None)


def test_nic_counters_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(["100", "7", "130", "9", "130", "10", "175", "20"])
    monkeypatch.setattr(Path, "read_text", lambda _path: next(readings))
    nic = NicCounters("eth0")
    assert nic.since_last() == (30, 2)
    assert nic.since_last() == (0, 1)
    assert nic.total() == (75, 13)


def test_what_others_sent_is_in_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(["100", "7", "130", "9", "930", "709", "950", "710", "960", "720"])
    monkeypatch.setattr(Path, "read_text", lambda _path: next(readings))
    nic = NicCounters("eth0")
    assert nic.since_last() == (30, 2)
    nic.leave_out()
    assert nic.since_last() == (20, 1)
    assert nic.total() == (60, 13)


def test_the_loopback_of_this_machine_is_counted() -> None:
    sent, received = NicCounters("lo").total()
    assert sent >= 0
    assert received >= 0


def test_a_missing_nic_is_named() -> None:
    with pytest.raises(WorkerError, match=r"/sys/class/net/nope0/statistics"):
        NicCounters("nope0")
