"""Cost: payload to the byte, and seconds worked out by hand."""

import random

import pytest

from ddp.algorithms import ALGORITHMS, hierarchical_schedule, ring_for, ring_schedule
from ddp.cost import (
    NodeTraffic,
    Price,
    inter_node_bound,
    payload_bytes,
    price,
    traffic,
)
from ddp.errors import UsageError
from ddp.fabric import Direction, Fabric, Link, NodeLinks
from ddp.schedule import Schedule, Transfer

CLUSTERS = [(1, 1), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (3, 3)]
NUMELS = [0, 1, 867_433, 4_194_304]


FAST = Link(0.0, 1e9)
MEGABYTE = Link(0.0, 1e6)


def node_links(nic=MEGABYTE, intra=FAST):
    return NodeLinks(nic_out=nic, nic_in=nic, intra=intra)


def scattered(num_nodes, ranks_per_node):
    node_of = [node for node in range(num_nodes) for _ in range(ranks_per_node)]
    random.Random(5).shuffle(node_of)
    return Fabric(tuple(node_of))


@pytest.mark.parametrize("numel", NUMELS)
@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), CLUSTERS)
@pytest.mark.parametrize("segments", [1, 4])
class TestPayload:
    """What rounding can shift: each rank leaves two chunks out, each off by under an element."""

    def sent(self, fabric, algorithm, order, numel, segments):
        schedule = ALGORITHMS[algorithm].build(fabric, order, 0)
        by_node = payload_bytes(schedule, fabric, numel, 4, segments)
        assert set(by_node) == set(fabric.node_of)
        return by_node.values()

    def test_contiguous_ring(self, num_nodes, ranks_per_node, numel, segments):
        fabric = scattered(num_nodes, ranks_per_node)
        num_ranks = fabric.num_ranks
        expected = 2 * (num_ranks - 1) / num_ranks * 4 * numel if num_nodes > 1 else 0

        sent = self.sent(fabric, "ring", "contiguous", numel, segments)

        assert all(abs(num_bytes - expected) <= 4 * 2 * segments for num_bytes in sent)

    def test_interleaved_ring(self, num_nodes, ranks_per_node, numel, segments):
        fabric = scattered(num_nodes, ranks_per_node)
        num_ranks = fabric.num_ranks
        expected = 2 * (num_ranks - 1) / num_ranks * 4 * numel if num_nodes > 1 else 0
        expected *= ranks_per_node

        sent = self.sent(fabric, "ring", "interleaved", numel, segments)

        slack = 4 * 2 * segments * ranks_per_node
        assert all(abs(num_bytes - expected) <= slack for num_bytes in sent)

    def test_hierarchical(self, num_nodes, ranks_per_node, numel, segments):
        fabric = scattered(num_nodes, ranks_per_node)
        expected = 2 * (num_nodes - 1) / num_nodes * 4 * numel

        sent = self.sent(fabric, "hierarchical", "contiguous", numel, segments)

        slack = 4 * 2 * segments * ranks_per_node
        assert all(abs(num_bytes - expected) <= slack for num_bytes in sent)


@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("numel", NUMELS)
@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), CLUSTERS)
def test_all_of_a_star_goes_through_the_node_of_rank_0(num_nodes, ranks_per_node, numel, segments):
    fabric = scattered(num_nodes, ranks_per_node)
    schedule = ALGORITHMS["parameter_server"].build(fabric, "contiguous", 0)
    size, here = 4 * numel, ranks_per_node - 1
    far = fabric.num_ranks - ranks_per_node

    counted = traffic(schedule, fabric, numel, 4, segments)

    root = fabric.node_of[0]
    assert counted.pop(root) == NodeTraffic(far * size, far * size, 2 * here * size)
    each = ranks_per_node * size
    assert counted == dict.fromkeys(counted, NodeTraffic(each, each, 0))


def test_hierarchical_sends_the_bound_on_unequal_nodes_too():
    fabric = Fabric((0, 1, 1, 2, 1, 2, 1, 5))
    numel = 4 * 4 * 1000  # four shards of four chunks

    sent = payload_bytes(hierarchical_schedule(fabric.groups), fabric, numel, 4)

    assert sent == dict.fromkeys((0, 1, 2, 5), inter_node_bound(4 * numel, 4))


def test_a_ring_of_four_on_two_nodes_is_counted_by_hand():
    fabric = Fabric.uniform(2, 2)

    # chunks of 3 2 2 2 elements; a hop carries all but chunk p+1, then all but chunk p+2
    assert traffic(ring_schedule((0, 1, 2, 3)), fabric, numel=9, itemsize=10) == {
        0: NodeTraffic(out_bytes=140, in_bytes=130, intra_bytes=140),
        1: NodeTraffic(out_bytes=130, in_bytes=140, intra_bytes=130),
    }


def test_the_most_a_hierarchy_can_win_over_a_contiguous_ring():
    for num_nodes, ranks_per_node, ceiling in [(2, 2, 1.5), (2, 4, 1.75), (4, 2, 7 / 6)]:
        fabric = Fabric.uniform(num_nodes, ranks_per_node)
        numel = 64 * 1000
        ring = ring_schedule(ring_for(fabric, "contiguous"))
        sent = [
            max(payload_bytes(schedule, fabric, numel, 4).values())
            for schedule in (ring, hierarchical_schedule(fabric.groups))
        ]
        assert sent[0] / sent[1] == pytest.approx(ceiling)


class TestPrice:
    def test_a_stage_takes_its_slowest_capacity_and_adds_what_shares_it(self):
        fabric = Fabric((0, 0, 1), (node_links(Link(1.0, 100.0), Link(0.5, 10.0)),) * 2)
        stage = (Transfer(0, 2, 0, True), Transfer(1, 2, 1, True), Transfer(0, 1, 0, True))
        schedule = Schedule(3, 2, "made-up", lambda: [stage])

        # NICs: 1 s + 200 bytes at 100 a second; inside node 0: 0.5 s + 100 bytes at 10 a second
        assert price(schedule, fabric, 200) == Price(
            seconds=10.5,
            traffic={0: NodeTraffic(200, 0, 100), 1: NodeTraffic(0, 200, 0)},
            bottleneck=(0, Direction.INTRA),
        )

    def test_a_ring_costs_its_stages(self):
        links = node_links(Link(0.002, 1e6))
        fabric = Fabric.uniform(64, 1, [links] * 64)

        cost = price(ring_schedule(range(64)), fabric, 64_000_000)

        expected = 2 * 63 * 0.002 + 2 * 63 / 64 * 64_000_000 / 1e6
        assert cost.seconds == pytest.approx(expected)

    def test_segments_hide_all_but_the_busiest_capacity(self):
        fabric = Fabric.uniform(2, 2, [node_links(Link(0.0, 100.0), Link(0.0, 1000.0))] * 2)
        schedule = hierarchical_schedule(fabric.groups)

        # 1000 bytes: inside 1 s, between nodes 5 + 5 s, inside (last half of a shard) 0.5 s
        prices = [price(schedule, fabric, 1000, segments).seconds for segments in (1, 2, 10)]

        assert prices == pytest.approx([11.5, 5.75 + 5, 1.15 + 9])

    @pytest.mark.parametrize("segments", [1, 3, 16])
    @pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "parameter_server"])
    def test_no_capacity_is_ever_outrun(self, algorithm, segments):
        links = [node_links(Link(0.001, rate), Link(0.0, 3e6)) for rate in (1e6, 2e6, 5e6)]
        fabric = Fabric((0, 1, 2, 1, 0, 0), tuple(links))

        cost = price(
            ALGORITHMS[algorithm].build(fabric, "contiguous", 0), fabric, 7_654_321, segments
        )

        for node, moved in cost.traffic.items():
            assert cost.seconds >= moved.out_bytes / links[node].nic_out.bytes_per_s
            assert cost.seconds >= moved.in_bytes / links[node].nic_in.bytes_per_s
            assert cost.seconds >= moved.intra_bytes / links[node].intra.bytes_per_s

    @pytest.mark.parametrize("direction", [Direction.NIC_IN, Direction.NIC_OUT])
    @pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
    def test_one_slow_direction_of_one_node_is_the_bottleneck(self, algorithm, direction):
        nic_out, nic_in = (MEGABYTE, FAST) if direction is Direction.NIC_OUT else (FAST, MEGABYTE)
        links = [node_links(FAST), NodeLinks(nic_out, nic_in, intra=FAST), node_links(FAST)]
        fabric = Fabric.uniform(3, 2, links)
        schedule = ALGORITHMS[algorithm].build(fabric, "contiguous", 0)

        assert price(schedule, fabric, 10**6).bottleneck == (1, direction)

    @pytest.mark.parametrize(
        ("algorithm", "order", "low_s", "high_s"),
        [
            ("hierarchical", "contiguous", 0.335, 0.360),
            ("ring", "contiguous", 0.500, 0.515),
            ("ring", "interleaved", 1.000, 1.020),
            # in and out at once, but for the first of eight segments in and the last one out
            ("parameter_server", "contiguous", 0.750, 0.780),
        ],
    )
    def test_two_by_two_at_400_mbit_with_16_mb(self, algorithm, order, low_s, high_s):
        links = node_links(Link(0.0007, 47.8e6), Link(0.0003, 600e6))
        fabric = Fabric.uniform(2, 2, [links] * 2)
        schedule = ALGORITHMS[algorithm].build(fabric, order, 0)

        assert low_s < price(schedule, fabric, 16_000_000, segments=8).seconds < high_s

    @pytest.mark.parametrize(("num_ranks", "num_bytes"), [(1, 1000), (4, 0)])
    def test_what_moves_nothing_costs_nothing(self, num_ranks, num_bytes):
        fabric = Fabric.uniform(num_ranks, 1, [node_links(Link(1.0, 1.0))] * num_ranks)

        cost = price(ring_schedule(range(num_ranks)), fabric, num_bytes, segments=3)

        assert (cost.seconds, cost.bottleneck) == (0.0, None)

    def test_what_cannot_be_priced_is_refused(self):
        ring = ring_schedule((0, 1))
        priced = Fabric.uniform(2, 1, [node_links()] * 2)

        with pytest.raises(UsageError, match="without links"):
            price(ring, Fabric.uniform(2, 1), 8)
        with pytest.raises(UsageError, match="2 ranks on a fabric of 3"):
            price(ring, Fabric.uniform(3, 1, [node_links()] * 3), 8)
        with pytest.raises(UsageError, match="at least one"):
            price(ring, priced, 8, segments=0)

    def test_stages_are_priced_as_they_are_drawn(self):
        alive = 0

        def stages():
            nonlocal alive
            for _ in range(1000):
                alive += 1
                yield _Counted((Transfer(0, 1, 0, True),), on_delete=forget)
                assert alive <= 3

        def forget():
            nonlocal alive
            alive -= 1

        fabric = Fabric.uniform(2, 1, [node_links()] * 2)
        assert price(Schedule(2, 1, "long", stages), fabric, 1000).seconds == pytest.approx(1.0)


class _Counted(tuple):
    """A stage that tells when it is forgotten."""

    def __new__(cls, items, on_delete):
        stage = super().__new__(cls, items)
        stage.on_delete = on_delete
        return stage

    def __del__(self):
        self.on_delete()


@pytest.mark.parametrize(
    ("alpha_s", "segments", "expected_s"),
    [
        (1.0, 1, 8 + 2),  # nothing is in flight meanwhile
        (1.0, 4, 8 + 1),  # the link never pauses but once
        (10.0, 4, 2 + 20),  # longer than the bytes of all that follow
    ],
)
def test_fixed_costs_hide_behind_the_bytes_of_other_segments(
    alpha_s: float, segments: int, expected_s: float
) -> None:
    link = Link(alpha_s, 100.0)
    fabric = Fabric((0, 1), (node_links(link), node_links(link)))

    ring = price(ring_schedule((0, 1)), fabric, 800, segments)

    assert ring.seconds == pytest.approx(expected_s)


def test_fixed_costs_off_the_busiest_link_are_not_hidden() -> None:
    nic, inside = Link(1.0, 100.0), Link(0.5, 1e9)
    fabric = Fabric((0, 0, 1, 1), (node_links(nic, inside), node_links(nic, inside)))

    hierarchical = price(hierarchical_schedule(fabric.groups), fabric, 800, 8)

    # 800 bytes leave each node; one stage inside before them, one after them
    assert hierarchical.seconds == pytest.approx(8 + 1 + 2 * 0.5, rel=1e-6)
