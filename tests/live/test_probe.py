"""The probe against the kernel: what is limited is measured so, and what is not is refused."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import NodeError, ProbeFailed
from cluster.lab import bring_up, list_labs, measure, open_lab, take_down
from cluster.netns import NetnsNodes
from cluster.nodes import Making
from cluster.probe import ProbeReport, require_carried, run_probe
from cluster.spec import ClusterSpec, LinksSpec, load_cluster
from cluster.units import parse_rate

pytestmark = pytest.mark.netns
NETNS = Making("netns")
MIXED = ClusterSpec.from_dict(
    {
        "name": "mixed",
        "nodes": 2,
        "ranks_per_node": 1,
        "links": {
            "inter_node": {"rate": "200mbit", "mtu": 9000},
            "intra_node": {"rate": "400mbit"},
        },
        "overrides": {"node1": {"inter_node": {"rate": "50mbit"}}},
    }
)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    for name in list_labs():
        take_down(name)


def measured(report: ProbeReport) -> dict[tuple[str, str, str], float | None]:
    return {(link.mode, link.src, link.dst): link.ratio for link in report.links}


def test_a_lab_comes_up_with_every_link_proven() -> None:
    report = bring_up(load_cluster("2x2"), making=NETNS).probe
    assert report is not None and report.ok
    assert set(measured(report)) == {
        ("one_way", "node0", "node1"),
        ("one_way", "node1", "node0"),
        ("both_ways", "node0", "node1"),
        ("both_ways", "node1", "node0"),
        ("intra_node", "node0", "node0"),
        ("intra_node", "node1", "node1"),
    }
    for link in report.links:
        assert link.round_trip_s is not None and 0 < link.round_trip_s < 1
        if link.mode == "intra_node":
            assert link.configured_bits_per_second is None
            assert link.measured_bytes_per_second > 10 * 25e6
        else:
            assert link.configured_bits_per_second == 200_000_000
            assert link.ratio is not None and 0.97 <= link.ratio <= 1.03
    assert open_lab().probe == report


def test_unequal_nodes_large_packets_and_a_shaped_inside() -> None:
    report = bring_up(MIXED, making=NETNS).probe
    assert report is not None
    for mode, src in (("one_way", "node0"), ("one_way", "node1"), ("both_ways", "node1")):
        link = report.find(mode, src)
        assert link is not None and link.configured_bits_per_second == 50_000_000
        assert link.measured_bytes_per_second < 1.03 * 50e6 / 8
    inside = report.find("intra_node", "node0")
    assert inside is not None and inside.configured_bits_per_second == 400_000_000
    assert inside.measured_bytes_per_second < 1.03 * 50e6


def test_more_than_this_machine_carries_leaves_nothing_and_says_how_much() -> None:
    with pytest.raises(ProbeFailed) as caught:
        bring_up(load_cluster("2x2", "900gbit"), making=NETNS)
    assert "carried only" in caught.value.message
    assert caught.value.seen is not None and "limit 900gbit" in caught.value.seen
    assert list_labs() == ()
    words = r"this machine carries up to about (\S+): make cluster-up RATE=(\S+)"
    advice = re.fullmatch(words, caught.value.fix[0])
    assert advice is not None, caught.value.fix
    assert advice[1] == advice[2]
    assert 1_000_000 <= parse_rate(advice[1]) < 900_000_000_000


def test_a_limit_taken_off_behind_the_labs_back_is_found() -> None:
    """The probe measures the kernel, not what was asked of it."""
    lab = bring_up(load_cluster("2x2"), making=NETNS, probe=False)
    for node in lab.nodes.list():
        lab.nodes.shape(node, LinksSpec.model_validate({"inter_node": {"rate": "unlimited"}}))
    with pytest.raises(ProbeFailed, match="more than it was limited to"):
        measure()
    kept = open_lab().probe
    assert kept is not None and not kept.ok


def test_one_limited_direction_is_enough_to_be_found() -> None:
    """Only what comes into node1 is slow: a probe of one direction would miss it."""
    lab = bring_up(load_cluster("2x2"), making=NETNS, probe=False)
    nodes = lab.nodes
    assert isinstance(nodes, NetnsNodes)
    tc = "tc qdisc replace dev port1 root handle 1: tbf rate 100mbit burst 131072 limit 1381072"
    nodes._run([tc.split()])
    report = run_probe(nodes, lab.spec, intra=False)
    slow = {key for key, ratio in measured(report).items() if ratio is not None and ratio < 0.6}
    assert {("one_way", "node0", "node1"), ("both_ways", "node0", "node1")} <= slow
    assert ("one_way", "node1", "node0") not in slow
    with pytest.raises(ProbeFailed, match="carried only"):
        require_carried(report)


def test_an_unlimited_fabric_is_measured_and_not_judged() -> None:
    report = bring_up(load_cluster("2x2", "unlimited"), making=NETNS).probe
    assert report is not None and report.ok
    assert all(link.ceiling_bytes_per_second is None for link in report.links)
    assert all(link.measured_bytes_per_second > 0 for link in report.links)


def test_a_node_that_cannot_be_reached_is_an_error_of_ours() -> None:
    lab = bring_up(load_cluster("2x2"), making=NETNS, probe=False)
    nodes = lab.nodes
    assert isinstance(nodes, NetnsNodes)
    nodes._run([["ip", "link", "set", "port1", "down"]])
    with pytest.raises(NodeError, match="probe failed"):
        run_probe(nodes, lab.spec)
