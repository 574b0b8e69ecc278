"""A container as a node: its NIC by address, and the commands that make its sides limitable."""

import json
from ipaddress import IPv4Network

import pytest

from cluster.compose.devices import fabric_commands, fabric_nic, side_device
from cluster.errors import NodeError
from cluster.nodes import Node
from cluster.shaping import Side

SUBNET = IPv4Network("198.18.3.0/24")
NODE = Node("node0", 0, "198.18.3.2", "eth1")


def links(**addresses: str) -> str:
    """What ip answers for NICs with these addresses."""
    return json.dumps(
        [{"ifname": name, "addr_info": [{"local": own}]} for name, own in addresses.items()]
    )


def test_the_nic_is_found_by_its_address_whatever_its_name() -> None:
    assert fabric_nic(links(lo="127.0.0.1", eth0="10.0.0.2", eth1="198.18.3.2"), SUBNET) == (
        "eth1",
        "198.18.3.2",
    )


@pytest.mark.parametrize(
    ("found", "seen"),
    [
        (links(lo="127.0.0.1"), "none"),
        (links(eth0="198.18.3.2", eth1="198.18.3.3"), "eth0 198.18.3.2, eth1 198.18.3.3"),
    ],
)
def test_none_or_two_are_refused(found: str, seen: str) -> None:
    with pytest.raises(
        NodeError, match=r"not one NIC of the container is in 198\.18\.3\.0/24"
    ) as c:
        fabric_nic(found, SUBNET)
    assert c.value.seen == seen


def test_the_commands() -> None:
    shown = [
        " ".join(words) for words in fabric_commands(NODE, 9000, SUBNET, '[{"dst": "default"}]')
    ]
    assert shown == [
        "ip route del default",
        "ip link set dev eth1 mtu 9000",
        "ip route change 198.18.3.0/24 dev eth1 scope link proto kernel src 198.18.3.2 "
        "congctl cubic",
        "ip route change local 198.18.3.2 dev eth1 table local proto kernel src 198.18.3.2 "
        "congctl cubic",
        "ip link add ifb0 type ifb",
        "ip link set dev ifb0 mtu 9000 up",
        "tc qdisc add dev eth1 handle ffff: ingress",
        "tc filter add dev eth1 parent ffff: protocol all u32 match u32 0 0 action mirred "
        "egress redirect dev ifb0",
    ]
    assert len(list(fabric_commands(NODE, 9000, SUBNET, "[]"))) == len(shown) - 1


def test_each_side_has_its_device() -> None:
    devices = {side: side_device(NODE, side)[1] for side in Side}
    assert devices == {Side.OUT: "eth1", Side.IN: "ifb0", Side.INSIDE: "lo"}
