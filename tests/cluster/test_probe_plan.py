"""Rounds of the probe, and what each link should carry."""

from collections import Counter
from typing import Any

import pytest

from cluster.nodes import Node
from cluster.probe_plan import Flow, Mode, both_ways_ceiling, pairs, rounds
from cluster.spec import ClusterSpec, load_cluster
from cluster.topology import FabricNetwork


def cluster(nodes: int, **links: Any) -> ClusterSpec:
    data = load_cluster("2x2").to_dict()
    data["nodes"] = nodes
    data["links"]["inter_node"].update(links)
    return ClusterSpec.from_dict(data)


def planned(spec: ClusterSpec, intra: bool = True) -> list[list[Flow]]:
    return rounds(spec, FabricNetwork().nodes(spec), intra)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_each_node_sends_and_receives_alone_and_both_at_once(count: int) -> None:
    spec = cluster(count)
    names = set(spec.node_names)
    for mode in (Mode.ONE_WAY, Mode.BOTH_WAYS):
        flows = [flow for round_ in planned(spec) for flow in round_ if flow.mode is mode]
        assert {flow.src.name for flow in flows} == names
        assert {flow.dst.name for flow in flows} == names
        most = Counter(flow.src.name for flow in flows).most_common(1)[0][1]
        assert most <= 2 - (count % 2 == 0)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_flows_of_one_round_share_no_node_and_direction(count: int) -> None:
    for round_ in planned(cluster(count)):
        assert len({flow.src for flow in round_}) == len(round_)
        assert len({flow.dst for flow in round_}) == len(round_)
        if round_[0].mode is Mode.ONE_WAY:
            assert not {flow.src for flow in round_} & {flow.dst for flow in round_}


def test_the_number_of_rounds_does_not_grow_with_nodes() -> None:
    for count in (2, 4, 16, 64):
        assert len(planned(cluster(count), intra=False)) == 3
    assert len(planned(cluster(1), intra=False)) == 0
    assert len(planned(cluster(4))) == 3 + 4


def test_pairs_cover_an_odd_number_in_two_rounds() -> None:
    nodes = [Node(f"node{k}", k, "", "fab0") for k in range(5)]
    first, second = pairs(nodes)
    assert [(a.index, b.index) for a, b in first] == [(0, 1), (2, 3)]
    assert [(a.index, b.index) for a, b in second] == [(4, 0)]


def test_a_link_is_as_slow_as_its_slower_end() -> None:
    data = cluster(2).to_dict()
    data["overrides"] = {"node1": {"inter_node": {"rate": "50mbit", "mtu": 1400}}}
    spec = ClusterSpec.from_dict(data)
    one_way, back, *both, _, _ = [flow for round_ in planned(spec) for flow in round_]
    for flow in (one_way, back, *both):
        assert flow.rate_bits_per_s == 50_000_000
        assert flow.ceiling_bytes_per_s == 50e6 / 8 * (1400 - 52) / (1400 + 14)
        assert flow.unequal
    assert [flow.pace_bytes_per_s > 0 for flow in (one_way, back, *both)] == [0, 0, 1, 0]


def test_unlimited_and_lossy_links_have_no_ceiling() -> None:
    for links in ({"rate": "unlimited"}, {"loss": "1%"}):
        flows = [flow for round_ in planned(cluster(2, **links)) for flow in round_]
        assert all(flow.ceiling_bytes_per_s is None for flow in flows)


def test_bursts_are_left_out_and_enough_is_measured() -> None:
    for rate in ("1mbit", "200mbit", "10gbit"):
        flow = planned(cluster(2, rate=rate))[0][0]
        order = flow.order
        assert order["skip_bytes"] >= 2 * 131_072
        assert order["measure_s"] >= 0.5
        assert order["measure_bytes"] <= 5 * (flow.rate_bits_per_s or 0) / 8
    assert planned(cluster(2, delay="100ms"))[0][0].order["skip_s"] >= 4


def test_acknowledgements_take_their_share() -> None:
    """At every second packet they cost 2.2 % of a direction; at none, nothing."""
    flow = planned(cluster(2))[2][0]
    assert flow.mode is Mode.BOTH_WAYS
    assert both_ways_ceiling(flow, 0.0) == flow.ceiling_bytes_per_s
    packets_per_s = 25e6 / 1514
    some = both_ways_ceiling(flow, packets_per_s / 2)
    assert some is not None and flow.ceiling_bytes_per_s is not None
    assert round(some / flow.ceiling_bytes_per_s, 4) == round(1 - 33 / 1514, 4)


def test_names_of_flows() -> None:
    flows = [flow for round_ in planned(cluster(2)) for flow in round_]
    assert [flow.name for flow in flows] == [
        "node0 -> node1",
        "node1 -> node0",
        "node0 <-> node1",
        "node1 <-> node0",
        "inside node0",
        "inside node1",
    ]
