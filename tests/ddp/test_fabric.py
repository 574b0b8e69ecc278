"""Fabric: groups come from where ranks are, and impossible fabrics cannot be built."""

import pytest

from ddp.fabric import Fabric, Link, NodeLinks

LINK = Link(alpha_s=0.001, bytes_per_s=1e6)
LINKS = NodeLinks(LINK, LINK, LINK)


def test_uniform_numbers_ranks_node_by_node():
    fabric = Fabric.uniform(2, 3)

    assert fabric.node_of == (0, 0, 0, 1, 1, 1)
    assert fabric.groups == ((0, 1, 2), (3, 4, 5))
    assert (fabric.num_ranks, fabric.num_nodes) == (6, 2)


def test_groups_follow_scattered_ranks_and_unequal_nodes():
    fabric = Fabric((2, 0, 2, 0, 2, 1))

    assert fabric.groups == ((1, 3), (5,), (0, 2, 4))
    assert fabric.same_node(0, 4)
    assert not fabric.same_node(0, 1)


def test_only_occupied_nodes_are_counted():
    fabric = Fabric((7, 7, 3))

    assert fabric.groups == ((2,), (0, 1))
    assert fabric.num_nodes == 2


@pytest.mark.parametrize(
    ("node_of", "links", "rule"),
    [
        ((), (), "at least one rank"),
        ((0, -1), (), "start at 0, got -1"),
        ((0, 1, 2), (LINKS, LINKS), "links for 2 nodes do not cover node 2"),
    ],
)
def test_impossible_fabrics_are_refused(node_of, links, rule):
    with pytest.raises(ValueError, match=rule):
        Fabric(node_of, links)


@pytest.mark.parametrize(
    ("alpha_s", "bytes_per_s"), [(-1, 1e6), (0, 0), (0, -5), (float("nan"), 1), (0, float("nan"))]
)
def test_impossible_links_are_refused(alpha_s, bytes_per_s):
    with pytest.raises(ValueError, match="alpha must be at least 0 and the rate above 0"):
        Link(alpha_s, bytes_per_s)


@pytest.mark.parametrize("burst_bytes", [-1, float("nan")])
def test_no_burst_is_below_0(burst_bytes):
    with pytest.raises(ValueError, match="the burst at least 0"):
        Link(0.0, 1.0, burst_bytes)
