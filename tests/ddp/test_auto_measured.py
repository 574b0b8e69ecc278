"""What `auto` measures before it chooses: the slowest rank counts; small buffers in a row."""

from typing import Any

import pytest
from torch import Tensor

import ddp.auto
from ddp.auto import choose, links_of
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.membership import Membership
from ddp.probe import ProbedLink, ProbeTable
from ddp.probe_rounds import Mode
from ddp.timing import Traffic
from tests.ddp.samples import TIMEOUT_S

MB = 1_000_000


def links(between: float, inside: float) -> NodeLinks:
    return NodeLinks(Link(0.0, between), Link(0.0, between), Link(0.0, inside))


class Told:
    """An all-reduce that takes the time that it is told, by a clock of its own."""

    def __init__(self, name: str, rank: int, clock: list[float]) -> None:
        self.name = name
        self._slow = {"hierarchical": 1, "native": 2}.get(name) == rank
        self._clock = clock

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        del segments, bucket
        self._clock[0] += buffer.nbytes / 1024 * (0.002 if self._slow else 0.001)
        return Traffic(0, 0)


def test_the_slowest_rank_counts_and_rank_0s_links_do_on_every_rank(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank measures something else, and is told of other links; all choose alike."""

    def body(rank: int) -> Any:
        clock = [0.0]
        monkeypatch.setattr(ddp.auto, "make_collective", lambda name, *_: Told(name, rank, clock))
        monkeypatch.setattr(ddp.auto, "monotonic", lambda: clock[0])
        monkeypatch.setattr(ddp.auto, "PAUSE_S", 0.0)
        monkeypatch.setattr(ddp.auto, "MOST_S", 0.06)
        told = links(25 * MB, 50 * MB) if rank == 0 else links(rank * MB, 1.0)
        fabric = Fabric((0, 0, 1), (told, told))
        group = Membership(None, TIMEOUT_S).connect()
        chooser = ddp.auto.measure(group, fabric, 64 * MB, TIMEOUT_S)
        chosen = choose(group, fabric, (64 * MB, 1024), TIMEOUT_S)
        group.close()
        by_size = [(each.num_bytes, each.algorithm, each.seconds) for each in chooser.timings]
        rates = [
            [node.nic_out.bytes_per_s, node.nic_in.bytes_per_s] for node in chooser.fabric.links
        ]
        return by_size, rates, chooser.of(64 * MB), sorted(chosen)

    values = ranks.run(3, body)
    assert values[1:] == values[:1] * 2
    by_size, rates, large, sizes = values[0]
    assert {num_bytes for num_bytes, *_ in by_size} == {1024}, "4 KiB take too long"
    medians = {algorithm: seconds[0] for _, algorithm, seconds in by_size}
    assert medians == pytest.approx(
        {
            **dict.fromkeys(("ring", "hierarchical_leader", "parameter_server"), 0.001),
            **dict.fromkeys(("hierarchical", "native"), 0.002),
        }
    )
    assert rates == [[25 * MB, 25 * MB]] * 2
    assert large.segments > 1
    assert sizes == [1024, 64 * MB]


def test_small_buffers_are_timed_several_in_a_row(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a row waits for ranks that begin later, whatever it goes through."""

    class Waiting:
        def __init__(self, name: str, clock: list[float], last: list[str]) -> None:
            self.name, self._own_s = name, 0.001 if name == "parameter_server" else 0.002
            self._clock, self._last = clock, last

        def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
            del segments, bucket
            meets = buffer.nbytes == 4
            begins = not meets and self._last[0] != self.name
            self._last[0] = "" if meets else self.name
            self._clock[0] += self._own_s + (0.01 if begins else 0.0)
            return Traffic(0, 0)

    def body(rank: int) -> dict[int, float]:
        del rank
        clock, last = [0.0], [""]
        make = lambda name, *_: Waiting(name, clock, last)  # noqa: E731
        monkeypatch.setattr(ddp.auto, "make_collective", make)
        monkeypatch.setattr(ddp.auto, "monotonic", lambda: clock[0])
        monkeypatch.setattr(ddp.auto, "PAUSE_S", 0.0)
        monkeypatch.setattr(ddp.auto, "MOST_S", 10.0)
        group = Membership(None, TIMEOUT_S).connect()
        chooser = ddp.auto.measure(group, Fabric((0, 1)), 16 * 2**20, TIMEOUT_S)
        group.close()
        chosen = [each for each in chooser.timings if each.algorithm == "parameter_server"]
        return {each.num_bytes: each.seconds[0] for each in chosen}

    expected = dict.fromkeys((1 << 10, 4 << 10, 16 << 10, 64 << 10), 0.002)
    expected |= {256 << 10: 0.0035, 1 << 20: 0.011, 4 << 20: 0.011, 16 << 20: 0.011}
    assert ranks.run(2, body) == [pytest.approx(expected)] * 2


def test_links_that_nobody_told_are_probed(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a size must be priced, and only on more than one node."""
    probed: list[int] = []
    table = ProbeTable((ProbedLink(0, 1, Mode.BOTH_WAYS, 7e6, 1e-3),), 0.0)

    def probe(*_: Any) -> ProbeTable:
        probed.append(1)
        return table

    def body(rank: int) -> list[Any]:
        monkeypatch.setattr(ddp.auto, "probe_links", probe)
        monkeypatch.setattr(ddp.auto, "MOST_S", 0.0)  # nothing is timed
        group = Membership(None, TIMEOUT_S).connect()
        told, untold = Fabric((0, 1), (links(1.0, 1.0),) * 2), Fabric((0, 1))
        rank_0_told, rank_1_told = (told, untold)[rank], (untold, told)[rank]
        found = []
        for fabric in (Fabric((0, 0)), untold, told, rank_0_told, rank_1_told):
            probed.clear()
            chooser = ddp.auto.measure(group, fabric, MB, TIMEOUT_S)
            rates = [node.nic_out.bytes_per_s for node in chooser.fabric.links]
            found.append([len(probed), rates])
        group.close()
        return found

    inf = float("inf")
    as_probed, as_told = [1, [7e6, inf]], [0, [1.0, 1.0]]
    expected = [[0, [inf]], as_probed, as_told, as_told, as_probed]
    assert ranks.run(2, body) == [expected] * 2


def test_a_probe_tells_the_best_pair_of_each_node_both_ways_at_once() -> None:
    rows = (
        (0, 1, Mode.ONE_WAY, 90.0),
        (0, 1, Mode.BOTH_WAYS, 80.0),
        (0, 2, Mode.BOTH_WAYS, 10.0),
        (2, 0, Mode.ONE_WAY, 30.0),
        (1, 1, Mode.INTRA_NODE, 500.0),
    )
    table = ProbeTable(tuple(ProbedLink(*row, 0.0) for row in rows), 0.0)
    found = [
        [node.nic_out.bytes_per_s, node.nic_in.bytes_per_s, node.intra.bytes_per_s]
        for node in links_of(table, 3)
    ]
    inf = float("inf")
    assert found == [[80.0, 30.0, inf], [inf, 80.0, 500.0], [30.0, 10.0, inf]]
