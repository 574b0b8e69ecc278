"""Clocks of several machines: offsets that are put in come out, and readers shift by them."""

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp.transport.memory import MemoryNetwork
from jobs.clocks import NUM_ASKED, SAME, Offset, offset_to_first, own_clock
from jobs.clockshift import Shift, on_first_clock
from jobs.figures import run_figures
from jobs.records import RankRecords, records_path
from jobs.server.following import Follower
from jobs.summary import read_ranks
from tests.jobs.samples import MS, NODES, bucket, record, run_json

HOUR_NS = 3_600_000_000_000


class Clock:
    """Ticks once for all who share the world, each time somebody looks; shows `ahead_ns` more."""

    def __init__(self, world: Iterator[int], ahead_ns: int) -> None:
        self.world, self.ahead_ns = world, ahead_ns

    def __call__(self) -> int:
        return next(self.world) + self.ahead_ns


def measured(ahead_ns: list[int], asking: tuple[int, ...]) -> list[Offset]:
    world = itertools.count(5_000_000, 1_000)
    network = MemoryNetwork(len(ahead_ns))
    found: dict[int, Offset] = {}

    def body(rank: int) -> None:
        end = network.transport(rank)
        clock = Clock(world, ahead_ns[rank])
        found[rank] = offset_to_first(end, rank, asking, 10.0, clock)
        end.close()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(ahead_ns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[rank] for rank in range(len(ahead_ns))]


def test_offsets_that_were_put_in_come_out() -> None:
    """A look at the clock takes a microsecond here, so an exchange with nothing between takes two.

    Others look in between, which makes an exchange longer, and its error larger, but never wrong.
    """
    ahead_ns = [0, 0, HOUR_NS, -7 * MS]
    offsets = measured(ahead_ns, asking=(2, 3))
    assert offsets[:2] == [SAME, SAME]
    for offset, ahead in zip(offsets[2:], ahead_ns[2:], strict=True):
        assert abs(offset.offset_ns + ahead) <= offset.error_ns
        assert offset.error_ns < 100_000


def test_alone_with_rank_0_the_shortest_exchange_is_exact() -> None:
    _, offset = measured([0, HOUR_NS], asking=(1,))
    assert offset == Offset(-HOUR_NS, 1_000)


def test_the_shortest_exchange_counts() -> None:
    """All but one take long one way only, which would move the offset by half of that."""
    network = MemoryNetwork(2)

    def rank_0() -> None:
        offset_to_first(network.transport(0), 0, (1,), 10.0, lambda: 1_000)

    def slow() -> int:
        looks.append(0)
        number, second = divmod(len(looks) - 1, 2)
        return 900 + (200 if number == 5 else 90_000) * second

    looks: list[int] = []
    thread = threading.Thread(target=rank_0)
    thread.start()
    offset = offset_to_first(network.transport(1), 1, (1,), 10.0, slow)
    thread.join(10)
    assert offset == Offset(0, 100)
    assert len(looks) == 2 * NUM_ASKED


def test_ranks_of_one_machine_have_one_clock() -> None:
    assert own_clock() == own_clock()
    assert len(own_clock().split()[0]) == 36


def shifted(ahead_ns: int, drift_ns: int = 0) -> RankRecords:
    """A rank whose clock is ahead by so much, and by `drift_ns` more after 1000 ms."""

    def own(t_ns: int) -> int:
        return t_ns + ahead_ns + round(t_ns * drift_ns / (1000 * MS))

    def moved(it: Any) -> Any:
        buckets = tuple(
            replace(b, ready_ns=own(b.ready_ns), start_ns=own(b.start_ns), end_ns=own(b.end_ns))
            for b in it.buckets
        )
        exposed = tuple((own(start), own(end)) for start, end in it.exposed)
        return replace(it, t_ns=own(it.t_ns), exposed=exposed, buckets=buckets)

    late = record(buckets=(bucket(0, 50, 50, 70), bucket(1, 60, 60, 95)), exposed=((60, 95),))
    return RankRecords(
        header={"monotonic_ns": own(0), "clock": {"offset_ns": -ahead_ns, "error_ns": 5}},
        steps=[moved(late)],
        end={
            "monotonic_ns": own(1000 * MS),
            "clock": {"offset_ns": -(ahead_ns + drift_ns), "error_ns": 5},
        },
    )


@pytest.mark.parametrize(
    ("ahead_ns", "drift_ns"),
    [(0, 0), (HOUR_NS, 0), (-HOUR_NS, 0), (HOUR_NS, 30 * MS), (0, -9 * MS)],
)
def test_records_are_put_on_the_clock_of_rank_0(ahead_ns: int, drift_ns: int) -> None:
    (before,) = shifted(0).steps
    (after,) = on_first_clock(shifted(ahead_ns, drift_ns)).steps
    assert abs(after.t_ns - before.t_ns) <= 1
    for own, first in zip(after.buckets or (), before.buckets or (), strict=True):
        for key in ("ready_ns", "start_ns", "end_ns"):
            assert abs(getattr(own, key) - getattr(first, key)) <= 1
    assert abs(after.exposed[0][1] - before.exposed[0][1]) <= 1


def test_a_run_that_goes_on_is_shifted_by_what_is_known() -> None:
    rank = shifted(HOUR_NS)
    shift = Shift.of(rank.header, None)
    assert shift is not None and shift(HOUR_NS + 17) == 17
    assert Shift.of({"monotonic_ns": 3}, None) is None, "earlier versions wrote no clock"
    assert Shift.of({"monotonic_ns": 3, "clock": {"offset_ns": 0, "error_ns": 0}}, None) is None


def test_who_holds_up_the_others_is_seen_across_machines(tmp_path: Path) -> None:
    """Rank 3's second bucket is ready at 80 ms, that of the others at 60; its clock is an hour
    ahead. Until 70 ms all wait for the first one: so three of four ranks wait 10 ms for rank 3.
    """
    early = shifted(0)
    late = shifted(HOUR_NS)
    (step,) = late.steps
    first, second = step.buckets or ()
    second = replace(second, ready_ns=second.ready_ns + 20 * MS, start_ns=second.start_ns + 20 * MS)
    late.steps[0] = replace(step, buckets=(first, second))
    ranks = [early, early, early, late]
    for rank, records in enumerate(ranks):
        lines = [
            {"kind": "header", "wall_ns": 0, "gradient_bytes": 1, **(records.header or {})},
            {"kind": "step", **records.steps[0].to_json()},
            {"kind": "end", "params_sha256": "a", **(records.end or {})},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        records_path(tmp_path, rank).write_text(text)
    figures = run_figures(read_ranks(tmp_path, 4), NODES)
    assert figures.held_up_by == 3
    assert figures.straggler_wait_s == pytest.approx(0.0075)
    run = run_json()
    follower = Follower(tmp_path, {**run, "node_of": list(NODES), "world_size": 4})
    follower.poll()
    summary = follower.summary(run, None)
    assert summary["comm_seconds"]["straggler_wait"] == pytest.approx(0.0075)
