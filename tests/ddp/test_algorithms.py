"""Algorithms: the order a ring takes, the shape of a hierarchy, and how a name is found."""

import pytest

from ddp.algorithms import ALGORITHMS, find_algorithm, ring_for
from ddp.cost import inter_node_bound, payload_bytes
from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.schedule import Transfer


def hierarchy(fabric):
    return tuple(ALGORITHMS["hierarchical"].build(fabric, "contiguous", 0))


class TestRingOrders:
    def test_contiguous_is_by_node_however_ranks_are_numbered(self):
        assert ring_for(Fabric((1, 0, 1, 0)), "contiguous") == (1, 3, 0, 2)

    @pytest.mark.parametrize("node_of", [(0, 0, 1, 1), (0, 1, 0, 1), (2, 2, 2, 0, 0, 0, 1, 1, 1)])
    def test_interleaved_changes_node_at_every_hop(self, node_of):
        fabric = Fabric(node_of)
        ring = ring_for(fabric, "interleaved")

        hops = zip(ring, ring[1:] + ring[:1], strict=True)
        assert not any(fabric.same_node(rank, following) for rank, following in hops)

    def test_interleaved_with_unequal_nodes_visits_every_rank(self):
        assert ring_for(Fabric((0, 0, 0, 1)), "interleaved") == (0, 3, 1, 2)

    def test_shuffled_depends_on_its_seed_alone(self):
        rings = [ring_for(Fabric((0,) * 8), "shuffled", seed) for seed in (0, 1, 1)]

        assert rings[0] != rings[1] == rings[2]
        assert rings[1] == ring_for(Fabric(tuple(range(8))), "shuffled", 1)
        assert rings[1] == (0, 3, 5, 4, 6, 2, 7, 1)  # on every machine and Python

    @pytest.mark.parametrize(
        ("order", "seed", "rule"),
        [
            ("sorted", 0, "choose one of contiguous, interleaved, shuffled"),
            ("contiguous", 3, "only 'shuffled' uses a seed"),
        ],
    )
    def test_what_would_have_no_effect_is_refused(self, order, seed, rule):
        with pytest.raises(UsageError, match=rule):
            ring_for(Fabric((0, 1)), order, seed)


class TestHierarchy:
    def test_two_by_two_is_as_drawn_by_hand(self):
        stages = hierarchy(Fabric.uniform(2, 2))

        # chunks 0 1 are the shard of ranks 0 and 2, chunks 2 3 that of ranks 1 and 3
        inside = [(1, 0, 0), (1, 0, 1), (0, 1, 2), (0, 1, 3), (3, 2, 0), (3, 2, 1), (2, 3, 2)]
        inside += [(2, 3, 3)]
        across = [(0, 2, 0), (1, 3, 2), (2, 0, 1), (3, 1, 3)]
        back = [(0, 2, 1), (1, 3, 3), (2, 0, 0), (3, 1, 2)]
        shared = [(0, 1, 1), (1, 0, 3), (2, 3, 0), (3, 2, 2)]
        last = [(0, 1, 0), (1, 0, 2), (2, 3, 1), (3, 2, 3)]
        assert stages == (
            tuple(Transfer(*transfer, True) for transfer in inside),
            tuple(Transfer(*transfer, True) for transfer in across),
            tuple(Transfer(*transfer, False) for transfer in back + shared),
            tuple(Transfer(*transfer, False) for transfer in last),
        )

    @pytest.mark.parametrize(
        ("num_nodes", "ranks_per_node", "num_stages"),
        [(1, 1, 0), (1, 4, 2), (4, 1, 6), (2, 2, 4), (2, 4, 4), (4, 2, 8)],
    )
    def test_the_number_of_stages(self, num_nodes, ranks_per_node, num_stages):
        assert len(hierarchy(Fabric.uniform(num_nodes, ranks_per_node))) == num_stages

    def test_a_ring_order_it_cannot_follow_is_refused(self):
        with pytest.raises(UsageError, match="leave the order 'contiguous'"):
            ALGORITHMS["hierarchical"].build(Fabric.uniform(2, 2), "interleaved", 0)


class TestLeader:
    def leader(self, fabric):
        return tuple(ALGORITHMS["hierarchical_leader"].build(fabric, "contiguous", 0))

    def test_two_nodes_of_two(self):
        assert self.leader(Fabric((0, 0, 1, 1))) == (
            (
                *(Transfer(1, 0, c, True) for c in (0, 1)),
                *(Transfer(3, 2, c, True) for c in (0, 1)),
            ),
            (Transfer(0, 2, 0, True), Transfer(2, 0, 1, True)),
            (Transfer(0, 2, 1, False), Transfer(2, 0, 0, False)),
            (
                *(Transfer(0, 1, c, False) for c in (0, 1)),
                *(Transfer(2, 3, c, False) for c in (0, 1)),
            ),
        )

    def test_a_node_sends_the_least_and_one_rank_sends_all_of_it(self):
        fabric = Fabric((2, 0, 1, 0, 2, 1, 0))
        schedule = ALGORITHMS["hierarchical_leader"].build(fabric, "contiguous", 0)
        assert payload_bytes(schedule, fabric, 3000, 4) == dict.fromkeys((0, 1, 2), 16_000)
        across = [t for stage in schedule for t in stage if not fabric.same_node(t.src, t.dst)]
        assert {transfer.src for transfer in across} == {0, 1, 2}

    def test_one_rank_sends_nothing(self):
        assert self.leader(Fabric((0,))) == ()

    @pytest.mark.parametrize(("order", "seed"), [("interleaved", 0), ("contiguous", 3)])
    def test_a_ring_order_is_refused(self, order, seed):
        with pytest.raises(UsageError, match="leave the order 'contiguous'"):
            ALGORITHMS["hierarchical_leader"].build(Fabric.uniform(2, 2), order, seed)


class TestHalvingDoubling:
    def build(self, fabric, order="contiguous", seed=0):
        return ALGORITHMS["halving_doubling"].build(fabric, order, seed)

    def test_four_ranks_exchange_halves_then_quarters_and_back(self):
        assert tuple(self.build(Fabric((0, 0, 1, 1)))) == (
            (
                *(Transfer(0, 1, 2, True), Transfer(0, 1, 3, True)),
                *(Transfer(1, 0, 0, True), Transfer(1, 0, 1, True)),
                *(Transfer(2, 3, 2, True), Transfer(2, 3, 3, True)),
                *(Transfer(3, 2, 0, True), Transfer(3, 2, 1, True)),
            ),
            (
                *(Transfer(0, 2, 1, True), Transfer(1, 3, 3, True)),
                *(Transfer(2, 0, 0, True), Transfer(3, 1, 2, True)),
            ),
            (
                *(Transfer(0, 2, 0, False), Transfer(1, 3, 2, False)),
                *(Transfer(2, 0, 1, False), Transfer(3, 1, 3, False)),
            ),
            (
                *(Transfer(0, 1, 0, False), Transfer(0, 1, 1, False)),
                *(Transfer(1, 0, 2, False), Transfer(1, 0, 3, False)),
                *(Transfer(2, 3, 0, False), Transfer(2, 3, 1, False)),
                *(Transfer(3, 2, 2, False), Transfer(3, 2, 3, False)),
            ),
        )

    @pytest.mark.parametrize(
        ("num_nodes", "ranks_per_node"), [(2, 1), (2, 2), (4, 2), (2, 4), (8, 1)]
    )
    def test_its_stages_are_few_and_a_node_sends_the_least(self, num_nodes, ranks_per_node):
        fabric = Fabric.uniform(num_nodes, ranks_per_node)
        schedule = self.build(fabric)
        assert len(tuple(schedule)) == 2 * (fabric.num_ranks.bit_length() - 1)
        least = inter_node_bound(8000 * 4, num_nodes)
        assert set(payload_bytes(schedule, fabric, 8000, 4).values()) == {least}

    def test_neighbours_are_those_of_a_node_wherever_ranks_are(self):
        fabric = Fabric((1, 0, 1, 0))
        first = next(iter(self.build(fabric)))
        assert all(fabric.same_node(transfer.src, transfer.dst) for transfer in first)

    def test_one_rank_sends_nothing(self):
        assert tuple(self.build(Fabric((0,)))) == ()

    @pytest.mark.parametrize("num_ranks", [3, 5, 6, 7, 9, 12])
    def test_other_numbers_than_powers_of_two_are_refused_by_name(self, num_ranks):
        with pytest.raises(UsageError, match=rf"_doubling on {num_ranks} ranks.*hierarchical"):
            self.build(Fabric.uniform(1, num_ranks))

    @pytest.mark.parametrize(("order", "seed"), [("interleaved", 0), ("contiguous", 3)])
    def test_a_ring_order_is_refused(self, order, seed):
        with pytest.raises(UsageError, match="leave the order 'contiguous'"):
            self.build(Fabric.uniform(2, 2), order, seed)


class TestStar:
    def star(self, fabric):
        return tuple(ALGORITHMS["parameter_server"].build(fabric, "contiguous", 0))

    def test_rank_0_adds_one_after_the_other_and_sends_to_all(self):
        assert self.star(Fabric((1, 0, 1, 0))) == (
            (Transfer(1, 0, 0, True),),
            (Transfer(2, 0, 0, True),),
            (Transfer(3, 0, 0, True),),
            (Transfer(0, 1, 0, False), Transfer(0, 2, 0, False), Transfer(0, 3, 0, False)),
        )

    def test_one_rank_sends_nothing(self):
        assert self.star(Fabric((0,))) == ()

    @pytest.mark.parametrize(("order", "seed"), [("interleaved", 0), ("contiguous", 3)])
    def test_a_ring_order_is_refused(self, order, seed):
        with pytest.raises(UsageError, match="leave the order 'contiguous'"):
            ALGORITHMS["parameter_server"].build(Fabric.uniform(2, 2), order, seed)


class TestRegistry:
    def test_a_name_finds_its_algorithm(self):
        assert list(ALGORITHMS) == [
            *("ring", "hierarchical", "hierarchical_leader", "halving_doubling"),
            *("recursive_doubling", "parameter_server", "native", "auto", "noop"),
        ]
        for name, algorithm in ALGORITHMS.items():
            assert find_algorithm(name) is algorithm
            assert algorithm.name == name

    @pytest.mark.parametrize(
        ("name", "nearest"),
        [("heirarchical", "hierarchical"), ("rng", "ring"), ("param_server", "parameter_server")],
    )
    def test_an_unknown_name_is_told_the_known_ones_and_the_nearest(self, name, nearest):
        with pytest.raises(UsageError) as caught:
            find_algorithm(name)

        assert f"did you mean {nearest!r}?" in str(caught.value)
        names = "hierarchical_leader, halving_doubling, recursive_doubling, parameter_server"
        assert f"{names}, native, auto, noop" in str(caught.value)

    def test_a_name_near_to_none_gets_no_guess(self):
        with pytest.raises(
            UsageError, match=r"noop, or write the place of one of your own, path/to/my\.py:build$"
        ):
            find_algorithm("xyz")
