"""Calibration between threads: the same figures everywhere, in no long time on a slow inside."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp import calibrate
from ddp.algorithms import find_algorithm
from ddp.calibrate import INSIDE_NUMEL, SLOW_NUMEL, Calibration, Timed, num_stages, time_algorithms
from ddp.executor import ScheduledCollective
from ddp.fabric import Fabric
from ddp.fixed import IN_A_ROW, PAUSE_S, SMALL_NUMEL, SOME_NUMEL, FixedCost
from ddp.schedule import Schedule
from ddp.transport.memory import MemoryNetwork, MemoryTransport

FABRICS = [(0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 0)]


@dataclass
class Counting:
    """A transport that counts what is sent, by size."""

    inner: MemoryTransport
    sent: Counter[int] = field(default_factory=Counter)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        self.sent[tensor.numel()] += 1
        return self.inner.send(tensor, peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self.inner.recv(tensor, peer, tag)

    def borrow(self, like: Tensor, peer: int, tag: int) -> Any:
        return self.inner.borrow(like, peer, tag)

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return self.inner.allocate(rows)

    def close(self) -> None:
        self.inner.close()


def on_all_ranks(
    num_ranks: int, body: Callable[[int, Counting], Any]
) -> tuple[list[Any], Counter[int]]:
    """What every rank finds, and how many messages of each size all of them sent."""
    network = MemoryNetwork(num_ranks)
    ends = [Counting(network.transport(rank)) for rank in range(num_ranks)]
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        found[rank] = body(rank, ends[rank])
        ends[rank].close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(num_ranks)], sum((e.sent for e in ends), Counter())


def calibrated(node_of: tuple[int, ...]) -> tuple[list[Calibration], Counter[int]]:
    fabric = Fabric(node_of)
    return on_all_ranks(len(node_of), lambda rank, end: calibrate.calibrate(end, rank, fabric))


def schedule_of(name: str, fabric: Fabric) -> Schedule:
    build = find_algorithm(name).build
    assert build is not None
    return build(fabric, "contiguous", 0)


def most_on_a_node(node_of: tuple[int, ...]) -> int:
    return max(Counter(node_of).values())


@pytest.mark.parametrize("node_of", FABRICS)
def test_every_rank_finds_the_same(node_of: tuple[int, ...]) -> None:
    values, sent = calibrated(node_of)
    assert len(set(values)) == 1
    assert (values[0].alpha_inter_s is None) == (len(set(node_of)) == 1)
    assert values[0].alpha_intra_s is not None and values[0].intra_bytes_per_s is not None
    assert sent[INSIDE_NUMEL // most_on_a_node(node_of)] > 0


@pytest.mark.parametrize("node_of", FABRICS)
@pytest.mark.parametrize(
    ("fast", "slow", "repeats"), [(inf, 1e-9, 1), (inf, inf, 0), (1e-9, 1e-9, 5)]
)
def test_a_slow_inside_is_measured_once_or_not_at_all(
    node_of: tuple[int, ...],
    fast: float,
    slow: float,
    repeats: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "FAST_INSIDE_BYTES_PER_S", fast)
    monkeypatch.setattr(calibrate, "SLOW_INSIDE_BYTES_PER_S", slow)
    values, sent = calibrated(node_of)
    assert len(set(values)) == 1
    assert (values[0].intra_bytes_per_s is None) == (repeats == 0)
    assert values[0].alpha_intra_s is not None
    in_company = sum(node_of.count(node) > 1 for node in node_of)  # who has a neighbour
    numel = SLOW_NUMEL if fast == inf else INSIDE_NUMEL // most_on_a_node(node_of)
    assert sent[numel] == repeats * calibrate.LARGE_HOPS * in_company


@pytest.mark.parametrize("slow_s", [inf, 0.0])
@pytest.mark.parametrize("node_of", FABRICS)
def test_algorithms_are_timed_themselves(
    node_of: tuple[int, ...], slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many bytes, too, where a node's inside is no slow link."""
    monkeypatch.setattr(calibrate, "SLOW_S", slow_s)
    fabric = Fabric(node_of)
    names = ("ring", "hierarchical")

    def body(rank: int, end: Counting) -> dict[str, FixedCost]:
        timed = {}
        for name in names:
            schedule = schedule_of(name, fabric)
            stages = num_stages(schedule, fabric.num_ranks)
            made = ScheduledCollective(schedule, rank, fabric, end, 10.0)
            timed[name] = Timed(made, stages)
        return time_algorithms(end, rank, fabric, timed)

    found, sent = on_all_ranks(len(node_of), body)
    assert all(each == found[0] for each in found)
    assert list(found[0]) == list(names)
    assert found[0]["ring"].num_stages == 2 * (len(node_of) - 1)
    for cost in found[0].values():
        assert 0 < cost.small_s <= cost.some_s
        assert (cost.large_s is None) == (fabric.num_nodes > 1 or slow_s == 0)
        assert cost.large_s is None or cost.large_s >= cost.some_s
    # a chunk of either size is sent as often as the other: as many rounds of as many in a row
    ring_chunks = [numel // len(node_of) for numel in (SMALL_NUMEL, SOME_NUMEL)]
    assert all(sent[numel] > 0 for numel in ring_chunks)


@dataclass
class SlowAtFirst:
    """A collective whose first all-reduce of each size takes long, as one that connects does."""

    inner: ScheduledCollective
    name: str = "slow at first"
    calls: Counter[int] = field(default_factory=Counter)

    def all_reduce(self, buffer: Tensor, segments: int, number: int) -> Any:
        self.calls[buffer.numel()] += 1
        if self.calls[buffer.numel()] == 1:
            sleep(0.3)
        return self.inner.all_reduce(buffer, segments, number)


@pytest.mark.parametrize("node_of", [(0, 0, 1, 1), (0, 0, 0)])
def test_rows_begin_on_idle_links_and_the_first_time_does_not_tell_how_many(
    node_of: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: Counter[float] = Counter()
    monkeypatch.setattr(calibrate, "sleep", lambda seconds: pauses.update([seconds]))
    fabric = Fabric(node_of)

    def body(rank: int, end: Counting) -> Counter[int]:
        schedule = schedule_of("ring", fabric)
        made = SlowAtFirst(ScheduledCollective(schedule, rank, fabric, end, 10.0))
        time_algorithms(
            end, rank, fabric, {"ring": Timed(made, num_stages(schedule, len(node_of)))}
        )
        return made.calls

    found, _ = on_all_ranks(len(node_of), body)
    for calls in found:  # two tries, then at least a whole row; by the first, 3 s, it would be two
        assert calls[SMALL_NUMEL] >= 2 + IN_A_ROW
        assert calls[SOME_NUMEL] >= 2 + IN_A_ROW
    assert (pauses[PAUSE_S] > 0) == (fabric.num_nodes > 1)


def test_where_nothing_is_sent_nothing_is_timed() -> None:
    assert (num_stages(None, 4), num_stages(None, 1)) == (6, 0)
    fabric = Fabric((0,))

    def body(rank: int, end: Counting) -> dict[str, FixedCost]:
        schedule = schedule_of("ring", fabric)
        made = ScheduledCollective(schedule, rank, fabric, end, 10.0)
        return time_algorithms(end, rank, fabric, {"ring": Timed(made, 0)})

    assert on_all_ranks(1, body) == ([{}], Counter())


def test_what_slows_a_few_rounds_does_not_count() -> None:
    assert calibrate._usual([9.0, 1.0, 8.0, 2.0, 3.0]) == 2.0
    assert calibrate._usual([4.0]) == 4.0


def test_more_bytes_take_no_less() -> None:
    assert calibrate._rising(1.0, 2.0) == (1.0, 2.0)
    assert calibrate._rising(7.0, 3.0) == (5.0, 5.0)
