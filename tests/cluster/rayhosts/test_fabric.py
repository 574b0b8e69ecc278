"""Which NIC is the fabric: every way to say it, on nodes that are not alike."""

import pytest

from cluster.errors import FabricRefused
from cluster.rayhosts.fabric import Nics, resolve_fabric

LO = ("lo", "127.0.0.1")
FIRST = Nics("node0 (10.0.0.4)", "10.0.0.4", (LO, ("eth0", "10.0.0.4"), ("ib0", "10.9.0.1")))
SECOND = Nics("node1 (10.0.0.5)", "10.0.0.5", (LO, ("enp3s0", "10.0.0.5"), ("ib0", "10.9.0.2")))
BOTH = [FIRST, SECOND]


def test_without_a_word_it_is_where_ray_itself_is() -> None:
    assert resolve_fabric(None, BOTH) == [("eth0", "10.0.0.4"), ("enp3s0", "10.0.0.5")]


def test_a_name_is_exact() -> None:
    assert resolve_fabric("ib0", BOTH) == [("ib0", "10.9.0.1"), ("ib0", "10.9.0.2")]
    with pytest.raises(FabricRefused, match="fabric ib fits no NIC of node0"):
        resolve_fabric("ib", BOTH)


def test_a_subnet_finds_nics_of_different_names() -> None:
    assert resolve_fabric("10.0.0.0/24", BOTH) == [("eth0", "10.0.0.4"), ("enp3s0", "10.0.0.5")]
    assert resolve_fabric("10.9.0.7/16", BOTH) == [("ib0", "10.9.0.1"), ("ib0", "10.9.0.2")]


def test_a_nic_that_one_node_lacks_is_refused_with_that_nodes_list() -> None:
    with pytest.raises(FabricRefused) as caught:
        resolve_fabric("eth0", BOTH)
    assert caught.value.message == "fabric eth0 fits no NIC of node1 (10.0.0.5)"
    assert caught.value.seen == (
        "NICs of node1 (10.0.0.5): lo 127.0.0.1, enp3s0 10.0.0.5, ib0 10.9.0.2"
    )
    assert caught.value.fix == ("FABRIC=enp3s0", "FABRIC=ib0")


@pytest.mark.parametrize("words", ["lo", "127.0.0.0/8"])
def test_loopback_is_refused(words: str) -> None:
    with pytest.raises(FabricRefused, match=r"lo \(127\.0\.0\.1\) of node0 .* is loopback"):
        resolve_fabric(words, BOTH)


def test_a_ray_that_knows_its_nodes_by_loopback_is_one_machine() -> None:
    alone = Nics("node0", "127.0.0.1", (LO,))
    assert resolve_fabric(None, [alone]) == [LO]
    with pytest.raises(FabricRefused, match="is loopback"):
        resolve_fabric(None, [alone, alone])


@pytest.mark.parametrize("words", ["^lo", "=eth0", "eth0,ib0", " ", "^lo,docker0"])
def test_lists_as_nccl_reads_them_are_refused(words: str) -> None:
    with pytest.raises(FabricRefused, match="is no name of a NIC"):
        resolve_fabric(words, BOTH)


def test_several_addresses_are_no_answer() -> None:
    twice = Nics("node0", "10.0.0.4", (("eth0", "10.0.0.4"), ("eth0", "10.0.0.44")))
    for words in ("eth0", "10.0.0.0/24"):
        with pytest.raises(FabricRefused, match="fits several addresses of node0"):
            resolve_fabric(words, [twice])
    assert resolve_fabric("10.0.0.44/32", [twice]) == [("eth0", "10.0.0.44")]


@pytest.mark.parametrize("words", ["10.0.0.0/40", "10.0.0/24", "fe80::/64"])
def test_what_is_no_subnet(words: str) -> None:
    with pytest.raises(FabricRefused, match="is no IPv4 subnet"):
        resolve_fabric(words, BOTH)
