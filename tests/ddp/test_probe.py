"""The ranks' own probe between threads: who is paired with whom, one table for all, true rates."""

import threading
import time
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
from torch import Tensor

from cluster.probe import LinkMeasurement, ProbeReport
from ddp import probe, probe_command
from ddp.errors import PeerTimeout, UsageError
from ddp.fabric import Fabric
from ddp.nic import nic_towards, nics
from ddp.probe import ProbedLink, ProbeTable, probe_links
from ddp.probe_rounds import Flow, Mode, rounds
from ddp.stream import Length, rate
from ddp.transport.memory import MemoryNetwork, MemoryTransport

BRIEF = Length(skip_s=0.02, measure_s=0.05, most_s=0.3)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BETWEEN", BRIEF)
    monkeypatch.setattr(probe, "INSIDE", BRIEF)


class Slow:
    """A transport whose sends to other nodes take their time: all of a rank's go through one."""

    def __init__(self, inner: MemoryTransport, fabric: Fabric, rank: int, bytes_per_s: float):
        self.inner, self.bytes_per_s = inner, bytes_per_s
        self.far = {peer for peer in range(fabric.num_ranks) if not fabric.same_node(rank, peer)}
        self.free_at, self.lock = 0.0, threading.Lock()

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        if peer in self.far:
            with self.lock:
                self.free_at = (
                    max(self.free_at, time.monotonic()) + tensor.nbytes / self.bytes_per_s
                )
                time.sleep(max(0.0, self.free_at - time.monotonic()))
        return self.inner.send(tensor, peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self.inner.recv(tensor, peer, tag)

    def close(self) -> None:
        self.inner.close()


def probed(
    node_of: tuple[int, ...], wrap: Any = None, silent: int | None = None, timeout_s: float = 10.0
) -> list[Any]:
    """What every rank finds, or the error that it raises; `silent` does not take part."""
    network, fabric = MemoryNetwork(len(node_of)), Fabric(node_of)
    found: dict[int, Any] = {}

    def body(rank: int) -> None:
        end = network.transport(rank)
        try:
            found[rank] = probe_links(wrap(end, rank) if wrap else end, rank, fabric, timeout_s)
            end.close()
        except Exception as exc:
            found[rank] = exc

    ranks = [rank for rank in range(len(node_of)) if rank != silent]
    threads = [threading.Thread(target=body, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return [found[rank] for rank in ranks]


FABRICS = [(0, 0, 1, 1), (0, 1, 1, 1), (0, 1, 2), (2, 0, 2, 0), (0, 0, 0)]


@pytest.mark.parametrize("node_of", FABRICS)
def test_all_ranks_get_one_table_of_every_node_out_in_both_ways_and_inside(
    node_of: tuple[int, ...],
) -> None:
    tables = probed(node_of)
    assert all(isinstance(table, ProbeTable) for table in tables), tables
    assert len(set(tables)) == 1
    links = tables[0].links
    nodes, counts = sorted(set(node_of)), Counter(node_of)
    for mode in (Mode.ONE_WAY, Mode.BOTH_WAYS):
        ways = [(link.src, link.dst) for link in links if link.mode is mode]
        assert len(set(ways)) == len(ways)
        assert {end for way in ways for end in way} == set(nodes if len(nodes) > 1 else ())
        assert {src for src, _ in ways} == {dst for _, dst in ways}
    inside = [(link.src, link.dst) for link in links if link.mode is Mode.INTRA_NODE]
    assert inside == [(node, node) for node in nodes if counts[node] > 1]
    assert all(link.measured_bytes_per_second > 0 and link.round_trip_s > 0 for link in links)


def test_a_lone_rank_has_no_links() -> None:
    (table,) = probed((0,))
    assert table.links == ()


@pytest.mark.parametrize("num_nodes", [2, 3, 4, 5, 16, 33])
def test_rounds_do_not_grow_with_the_nodes(num_nodes: int) -> None:
    plan = rounds(Fabric.uniform(num_nodes, 2))
    assert len(plan) == (3 if num_nodes % 2 == 0 else 6) + 1
    for flows in plan[:-1]:
        ends = Counter((end, kind) for f in flows for end, kind in ((f.src, "s"), (f.dst, "d")))
        assert set(ends.values()) == {1}, "no two flows of a round leave or enter one node"


def test_every_rank_of_a_node_has_a_lane_and_no_two_lanes_join_the_same_ranks() -> None:
    (flow, *_), *_ = rounds(Fabric((0, 1, 1, 0, 1)))
    assert flow == Flow(0, 1, Mode.ONE_WAY, ((0, 1), (3, 2), (0, 4)))


def test_a_slow_link_is_told_from_a_fast_one() -> None:
    fabric = Fabric((0, 0, 1, 1))
    limit = 2e6

    def wrap(end: MemoryTransport, rank: int) -> Any:
        return Slow(end, fabric, rank, limit) if fabric.node_of[rank] == 1 else end

    table, *_ = probed(fabric.node_of, wrap)
    rates = {
        (link.src, link.dst, link.mode): link.measured_bytes_per_second for link in table.links
    }
    for mode in (Mode.ONE_WAY, Mode.BOTH_WAYS):
        assert rates[1, 0, mode] < 2 * limit * 1.2  # two ranks, each with a limit of its own
    assert rates[0, 1, Mode.ONE_WAY] > 2 * limit * 1.2


def test_who_held_up_the_probe_is_named() -> None:
    for error in probed((0, 0, 1, 1), silent=2, timeout_s=0.3):
        assert isinstance(error, PeerTimeout)
        assert str(error).startswith("measuring the links (")
    one, *_ = probed((0, 1), silent=1, timeout_s=0.2)
    assert "measuring the links (node 0 -> node 1): rank 1" in str(one)


def test_the_rate_is_that_of_the_measured_time_alone() -> None:
    length = Length(skip_s=1.0, measure_s=2.0, most_s=9.0)
    burst = [(0.0, 0), (0.5, 900), (1.0, 900)]
    even = [(1.25 + k / 4, 25) for k in range(10)]
    assert rate([*burst, *even], length) == pytest.approx(100.0)
    across = [(0.0, 0), (0.75, 900), *((1.25 + k / 2, 50) for k in range(8))]
    assert rate(across, length) == pytest.approx(100.0), "few blocks: to the end of the stream"
    assert rate([(0.0, 0), (4.0, 400)], length) == pytest.approx(100.0)


def test_the_entries_are_those_of_the_other_probe() -> None:
    link = ProbedLink(0, 1, Mode.ONE_WAY, 2.5e7, 1e-4)
    document = ProbeTable((link,), 17.0).to_json(["a", "b"])
    report = ProbeReport.from_json(document)
    assert document == report.to_json()
    assert report.links == (LinkMeasurement("a", "b", "one_way", None, 2.5e7, None, None, 1e-4),)
    (entry,) = ProbeTable((link,), 17.0).to_json()["links"]
    assert set(entry) == {field.name for field in fields(LinkMeasurement)}
    assert (entry["src"], entry["dst"]) == ("0", "1")


def test_the_command_says_how_it_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in probe_command.NEEDED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="1"):
        probe_command.main([])
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"MASTER_ADDR=' 10\.0\.5\.4' is no address"):
        probe_command.gloo_nic(" 10.0.5.4")


def test_the_table_as_text() -> None:
    links = (
        ProbedLink(0, 1, Mode.ONE_WAY, 23.9e6, 1.2e-4),
        ProbedLink(1, 0, Mode.BOTH_WAYS, 239e6, 1.2e-3),
        ProbedLink(1, 1, Mode.INTRA_NODE, 4e9, 5e-5),
    )
    assert probe_command.table_text(ProbeTable(links, 0.0), {0: "a", 1: "b"}, 4).splitlines() == [
        "4 ranks through torch's gloo: node 0 a, node 1 b",
        "  link                           Mbit/s  round trip",
        "  node 0 -> node 1                191.2     0.12 ms",
        "  node 1 -> node 0, both ways   1,912.0     1.20 ms",
        "  inside node 1                32,000.0     0.05 ms",
    ]


def test_the_loopback_leads_to_its_own_addresses() -> None:
    assert "127.0.0.1" in nics()["lo"]
    assert nic_towards("127.0.0.1") == ("lo", "127.0.0.1")
