"""The commands that make nodes and join them."""

from ipaddress import IPv4Network

import pytest

from cluster.errors import HostError, ShapingError
from cluster.lab import plan
from cluster.nodes import Making, Node
from cluster.spec import ClusterSpec, load_cluster
from cluster.topology import (
    BRIDGE,
    NIC,
    FabricNetwork,
    pinned_congestion_control,
    port_of,
    require_pinned,
    topology_commands,
)


def test_node_addresses_are_literal_and_in_the_benchmark_range() -> None:
    nodes = FabricNetwork().nodes(load_cluster("4x1"))
    assert [(node.name, node.address) for node in nodes] == [
        ("node0", "198.18.0.10"),
        ("node1", "198.18.0.11"),
        ("node2", "198.18.0.12"),
        ("node3", "198.18.0.13"),
    ]


def test_another_subnet_can_be_set() -> None:
    network = FabricNetwork(IPv4Network("10.9.0.0/28"))
    assert network.nodes(load_cluster("4x1"))[3].address == "10.9.0.13"
    many = ClusterSpec.from_dict({**load_cluster("4x1").to_dict(), "nodes": 6})
    with pytest.raises(HostError, match="no room for 6 nodes") as caught:
        network.nodes(many)
    assert caught.value.fix == ("SUBNET=10.9.0.0/27",)


def test_addresses_go_past_the_last_byte() -> None:
    many = ClusterSpec.from_dict({**load_cluster("4x1").to_dict(), "nodes": 256})
    assert FabricNetwork().nodes(many)[255].address == "198.18.1.9"


def test_names_are_long_enough_for_all_who_use_them() -> None:
    """gloo falls back to loopback at one letter; `br...` is read by ip as `broadcast`."""
    port = port_of(Node("node0", 0, "198.18.0.10", NIC))
    for name in (BRIDGE, NIC, port):
        assert 2 <= len(name) <= 15
        assert not name.startswith("br")


def test_every_command_of_two_nodes() -> None:
    assert plan(load_cluster("2x2"), making=Making("netns"))[:4] == (
        "ip link add fabric0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
        "ip link set fabric0 addrgenmode none",
        "ip netns add node0",
        "ip link add port0 mtu 1500 type veth peer name fab0 mtu 1500 netns node0",
    )
    assert plan(load_cluster("2x2"), making=Making("netns"))[-4:] == tuple(
        f"{tc} root handle 1: tbf rate 200000000bit burst 131072 limit 1381072"
        for tc in (
            "tc -n node0 qdisc replace dev fab0",
            "tc qdisc replace dev port0",
            "tc -n node1 qdisc replace dev fab0",
            "tc qdisc replace dev port1",
        )
    )


def test_the_switch_takes_the_largest_packets_of_any_node() -> None:
    data = load_cluster("2x2").to_dict()
    data["overrides"] = {"node1": {"inter_node": {"mtu": 9000}}}
    lines = [" ".join(c) for c in topology_commands(ClusterSpec.from_dict(data), FabricNetwork())]
    assert lines[-1] == "ip link set fabric0 mtu 9000 up"
    assert any("port0 mtu 1500" in line for line in lines)
    assert any("port1 mtu 9000" in line for line in lines)


@pytest.mark.parametrize(
    ("ipv6", "mtu", "num"), [(True, 1500, 5), (True, 1279, 1), (False, 1500, 0)]
)
def test_devices_are_told_of_ipv6_only_where_they_speak_it(ipv6: bool, mtu: int, num: int) -> None:
    """The kernel refuses addrgenmode elsewhere: no lab at all would come up."""
    data = load_cluster("2x2").to_dict()
    data["links"]["inter_node"]["mtu"] = mtu
    commands = topology_commands(ClusterSpec.from_dict(data), FabricNetwork(), ipv6)
    assert sum("addrgenmode" in command for command in commands) == num


def test_congestion_control_is_read_from_the_route() -> None:
    node = Node("node0", 0, "198.18.0.10", NIC)
    pinned = [{"dst": "198.18.0.0/15", "metrics": [{"rto_min": 5}, {"congestion": "cubic"}]}]
    assert pinned_congestion_control(pinned) == "cubic"
    require_pinned(node, pinned)
    for routes in ([], [{"dst": "x"}], [{"metrics": [{"congestion": "bbr"}]}]):
        with pytest.raises(ShapingError, match="node0"):
            require_pinned(node, routes)
