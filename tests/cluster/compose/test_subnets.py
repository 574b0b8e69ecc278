"""Which subnet a fabric gets, and who is named where the one asked for is taken."""

from ipaddress import IPv4Network

import pytest

from cluster.compose.subnets import candidates, choose_subnet, holder_of, taken_subnets
from cluster.errors import HostError

FIRST, SECOND = (str(net) for net, _ in zip(candidates(), range(2), strict=False))
NETWORKS = [
    {"Name": "bridge", "IPAM": {"Config": [{"Subnet": "172.17.0.0/16"}]}},
    {"Name": "six", "IPAM": {"Config": [{"Subnet": "fd00::/64"}]}},
    {"Name": "host", "IPAM": {"Config": None}},
    {"Name": "a_fabric", "IPAM": {"Config": [{"Subnet": "198.18.0.0/24"}]}},
]
ROUTES = [
    {"dst": "default", "dev": "eth9"},
    {"dst": "0.0.0.0/1", "dev": "tun0"},  # a VPN's way to say default
    {"dst": "128.0.0.0/1", "dev": "tun0"},
    {"dst": "10.1.0.0/16", "dev": "eth9"},
    {"dst": "10.1.2.3", "dev": "eth9", "type": "local"},
    {"dst": "10.1.255.255", "dev": "eth9", "type": "broadcast"},
]


def test_the_first_that_nobody_has() -> None:
    assert (FIRST, SECOND) == ("198.18.0.0/24", "198.18.1.0/24")
    assert str(choose_subnet(None, 2, {})) == FIRST
    assert str(choose_subnet(None, 2, taken_subnets(NETWORKS, ROUTES))) == SECOND


def test_many_nodes_get_a_wider_one() -> None:
    assert choose_subnet(None, 253, {}).prefixlen == 24
    assert choose_subnet(None, 254, {}).prefixlen == 23
    taken = taken_subnets(NETWORKS, ROUTES)
    assert str(choose_subnet(None, 256, taken)) == "198.18.2.0/23"


def test_who_has_what() -> None:
    taken = taken_subnets(NETWORKS, ROUTES)
    assert holder_of(IPv4Network("172.17.5.0/24"), taken) == "Docker's network bridge"
    assert holder_of(IPv4Network("10.0.0.0/8"), taken) == "this machine's interface eth9"
    assert holder_of(IPv4Network("10.2.0.0/16"), taken) is None
    assert holder_of(IPv4Network("192.168.0.0/16"), taken) is None


def test_one_that_is_taken_is_refused_with_its_holder_and_a_free_one() -> None:
    with pytest.raises(HostError) as caught:
        choose_subnet(IPv4Network("198.18.0.128/25"), 2, taken_subnets(NETWORKS, ROUTES))
    assert caught.value.message == "SUBNET=198.18.0.128/25 is taken"
    assert caught.value.seen == "held by Docker's network a_fabric"
    assert caught.value.fix[0] == f"SUBNET={SECOND} is free"


@pytest.mark.parametrize(
    ("asked", "nodes", "fix"),
    [("10.9.0.0/30", 2, "10.9.0.0/29"), ("10.9.0.0/29", 6, "10.9.0.0/28")],
)
def test_one_without_room_is_refused(asked: str, nodes: int, fix: str) -> None:
    with pytest.raises(HostError, match=f"no room for {nodes} nodes") as caught:
        choose_subnet(IPv4Network(asked), nodes, {})
    assert caught.value.fix == (f"SUBNET={fix}",)
    assert choose_subnet(IPv4Network(fix), nodes, {}) == IPv4Network(fix)


def test_no_part_is_free() -> None:
    with pytest.raises(HostError, match="is free"):
        choose_subnet(None, 2, {IPv4Network("198.0.0.0/8"): "somebody"})
