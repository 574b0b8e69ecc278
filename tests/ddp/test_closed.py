"""Closed forms against the schedules that they stand for, and on clusters too large for those."""

from dataclasses import replace
from time import monotonic

import pytest

from ddp.algorithms import find_algorithm
from ddp.closed import CLOSED_FORMS, Uniform, price_uniform
from ddp.cost import inter_node_bound, price
from ddp.errors import UsageError
from ddp.fabric import Direction, Fabric, Link, NodeLinks

SLOW = NodeLinks(Link(0.0007, 24e6), Link(0.0009, 23e6), Link(0.0003, 600e6))
INSIDE_SLOW = NodeLinks(Link(0.00002, 25e9), Link(0.00002, 25e9), Link(0.00001, 4e9))
BURSTS = NodeLinks(Link(0.0007, 24e6, 131_072), Link(0.0009, 23e6, 131_072), Link(0.0003, 600e6))
SLOW_WITHOUT_ALPHA = replace(BURSTS, nic_out=Link(0.0, 24e6), nic_in=Link(0.0, 24e6))
SHAPES = [(1, 1), (1, 4), (2, 1), (2, 2), (4, 2), (2, 4), (4, 4), (8, 1), (3, 2), (3, 3), (5, 1)]
DIVISIBLE = 2**4 * 3**3 * 5 * 1024  # by every number of ranks here, times every segment


@pytest.mark.parametrize(
    "links", [SLOW, INSIDE_SLOW, BURSTS], ids=["slow between", "slow inside", "bursts"]
)
@pytest.mark.parametrize("segments", [1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_a_closed_form_is_the_price_of_its_schedule(name, shape, segments, links):
    num_nodes, ranks_per_node = shape
    if name == "parameter_server":
        links = replace(links, nic_in=links.nic_out)
    algorithm, _, order = name.partition(", ")
    fabric = Fabric.uniform(num_nodes, ranks_per_node, [links] * num_nodes)
    try:
        schedule = find_algorithm(algorithm).build(fabric, order or "contiguous", 0)
    except UsageError:
        with pytest.raises(UsageError, match="power of two"):
            price_uniform(name, Uniform(*shape, links), DIVISIBLE)
        return
    whole = price(schedule, fabric, DIVISIBLE, segments)
    closed = price_uniform(name, Uniform(*shape, links), DIVISIBLE, segments)
    assert closed.seconds == pytest.approx(whole.seconds, rel=1e-9)
    busiest = max(whole.traffic.values(), key=lambda node: (node.out_bytes, node.intra_bytes))
    assert closed.traffic[0] == busiest
    if whole.bottleneck:
        assert closed.bottleneck is not None
        assert closed.bottleneck[1] == whole.bottleneck[1]


def test_more_nics_help_those_whose_ranks_all_send():
    one, four = (Uniform(4, 4, SLOW, nics=nics) for nics in (1, 4))
    for name in ("ring", "hierarchical_leader", "parameter_server"):
        assert price_uniform(name, four, DIVISIBLE) == price_uniform(name, one, DIVISIBLE)
    sharing = NodeLinks(Link(0.0007, 96e6), Link(0.0009, 92e6), SLOW.intra)
    for name in ("hierarchical", "halving_doubling", "ring, interleaved"):
        assert price_uniform(name, four, DIVISIBLE) == price_uniform(
            name, Uniform(4, 4, sharing), DIVISIBLE
        )


def test_nics_let_a_burst_through_each() -> None:
    links = replace(BURSTS, nic_out=Link(0.0, 24e6, 131_072), nic_in=Link(0.0, 24e6, 131_072))
    seconds = [
        [
            price_uniform("halving_doubling", Uniform(2, 2, each, nics=nics), DIVISIBLE).seconds
            for each in (SLOW_WITHOUT_ALPHA, links)
        ]
        for nics in (1, 2)
    ]
    # two NICs take the bytes in half the time, a burst of each at once
    assert seconds[0][0] - seconds[0][1] == pytest.approx(131_072 / 24e6)
    assert seconds[1][0] - seconds[1][1] == pytest.approx(131_072 / 24e6)


def test_65_536_ranks_are_priced_at_once():
    cluster, num_bytes = Uniform(8192, 8, INSIDE_SLOW), 14e9
    started = monotonic()
    prices = {name: price_uniform(name, cluster, num_bytes, 8) for name in CLOSED_FORMS}
    assert monotonic() - started < 30  # a schedule would take hours
    least = inter_node_bound(14_000_000_000, 8192)
    assert prices["hierarchical"].traffic[0].out_bytes == pytest.approx(least)
    assert prices["halving_doubling"].traffic[0].out_bytes == pytest.approx(least)
    assert prices["ring"].traffic[0].out_bytes == pytest.approx(2 * 65_535 / 65_536 * num_bytes)
    # seven of a node's eight hops stay inside, where all of them share 4 GB/s
    assert prices["ring"].seconds == pytest.approx(7 * 2 * 65_535 / 65_536 * 14e9 / 4e9)
    assert prices["ring"].bottleneck == (0, Direction.INTRA)


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="'shuffled' has no closed form: choose one of ring"):
        price_uniform("shuffled", Uniform(2, 2, SLOW), 1)
    with pytest.raises(UsageError, match="ranks_per_node is 0: at least one"):
        Uniform(2, 0, SLOW)
    with pytest.raises(UsageError, match="halving_doubling on 3 x 2 ranks: it pairs ranks off"):
        price_uniform("halving_doubling", Uniform(3, 2, SLOW), 1)
    with pytest.raises(UsageError, match="0 segments"):
        price_uniform("ring", Uniform(2, 2, SLOW), 1, 0)
