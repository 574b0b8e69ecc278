"""What `auto` chooses, on fabrics and timings made by hand, where the right answer is known."""

import pytest

from ddp.choice import Choice, Chooser, Timing, candidates, fastest_priced, timed_sizes
from ddp.fabric import Fabric, Link, NodeLinks

MB = 1_000_000
KIB, MIB = 1024, 2**20


def links(between: float, inside: float, alpha_s: float = 0.0, inner_s: float = 0.0) -> NodeLinks:
    nic = Link(alpha_s, between)
    return NodeLinks(nic, nic, Link(inner_s, inside))


def fabric(nodes: int, ranks: int, between: float, inside: float, *alphas: float) -> Fabric:
    return Fabric.uniform(nodes, ranks, [links(between, inside, *alphas)] * nodes)


def timing(algorithm: str, seconds: float, num_bytes: int = KIB, spread: float = 0.1) -> Timing:
    middle = [seconds * factor for factor in (1 - spread, 1 - spread / 2, 1, 1 + spread / 2)]
    return Timing(algorithm, num_bytes, (*middle, seconds * (1 + spread)))


class TestCandidates:
    def test_they_are_those_with_a_schedule_for_these_ranks(self) -> None:
        four = ["ring", "hierarchical", "hierarchical_leader", "halving_doubling"]
        more = ["recursive_doubling", "parameter_server"]
        assert list(candidates(Fabric.uniform(2, 2))) == [*four, *more]
        assert {*candidates(Fabric.uniform(3, 2))} == {*four[:3], "parameter_server"}


class TestPrices:
    def test_a_slow_link_between_nodes_asks_for_the_least_bytes_over_it(self) -> None:
        fast_inside = fabric(2, 4, 25 * MB, 5_000 * MB, 4e-4, 1e-4)
        assert fastest_priced(fast_inside, 32 * MB) == "hierarchical"
        assert Chooser(fast_inside).of(32 * MB) == Choice("hierarchical", 8)

    def test_where_the_inside_is_as_slow_a_ring_sends_least(self) -> None:
        assert fastest_priced(fabric(2, 4, 25 * MB, 25 * MB), 32 * MB) == "ring"

    def test_between_lone_ranks_and_inside_one_node_equals_go_to_the_simplest(self) -> None:
        assert fastest_priced(fabric(3, 1, 25 * MB, 1e12), 32 * MB) == "ring"
        assert fastest_priced(fabric(1, 3, 1e12, 500 * MB), 32 * MB) == "ring"

    def test_where_only_stages_cost_there_are_few(self) -> None:
        """Three exchanges of pairs; the star waits for its centre eight times."""
        dear_stages = fabric(8, 1, 1e12, 1e12, 1e-3, 1e-3)
        assert fastest_priced(dear_stages, KIB) == "recursive_doubling"

    def test_native_is_a_ring_in_rank_order(self) -> None:
        """In node order a ring of ours sends less; a dearer one of ours leaves it in front."""
        near = links(25 * MB, 5_000 * MB)
        scattered = Fabric((0, 1, 0, 1), (near, near))
        slow = [timing(name, 9.0) for name in candidates(scattered)]
        assert fastest_priced(scattered, 32 * MB, [*slow[1:], timing("native", 0.0)]) == "ring"
        assert fastest_priced(scattered, 32 * MB, [*slow, timing("native", 0.0)]) == "native"

    def test_what_a_price_lacks_is_learnt_from_the_last_timing(self) -> None:
        """Computing, say: much of a small buffer's time, little of a large one's."""
        there = fabric(2, 2, 25 * MB, 5_000 * MB)
        timings = [timing("hierarchical", 0.0, KIB), timing("hierarchical", 0.05, 4 * KIB)]
        timings += [timing("ring", 0.9, KIB), timing("ring", 0.0, 4 * KIB)]
        timings += [timing(name, 9.0) for name in ("hierarchical_leader", "halving_doubling")]
        # 16 KiB apart in bytes is 0.3 ms in seconds; 32 MB: 0.6 s
        assert fastest_priced(there, 16 * KIB, timings) == "ring"
        assert fastest_priced(there, 32 * MB, timings) == "hierarchical"


class TestTimings:
    def test_the_fastest_of_the_nearest_size(self) -> None:
        timings = (
            timing("ring", 1.0),
            timing("hierarchical", 2.0),
            timing("ring", 3.0, 4 * KIB),
            timing("hierarchical", 2.0, 4 * KIB),
        )
        chooser = Chooser(Fabric.uniform(2, 2), timings)
        assert [chooser.of(size).algorithm for size in (0, 1, KIB, 2 * KIB - 1)] == ["ring"] * 4
        assert [chooser.of(size).algorithm for size in (2 * KIB + 1, 9 * MB)] == [
            "hierarchical"
        ] * 2

    def test_as_good_is_the_first_of_the_registry(self) -> None:
        def chosen(star_s: float) -> str:
            timings = (timing("hierarchical", 1.0), timing("parameter_server", star_s))
            return Chooser(Fabric.uniform(2, 2), timings).of(KIB).algorithm

        assert chosen(0.99) == "hierarchical"
        assert chosen(0.95) == "parameter_server"

    def test_native_only_where_it_is_faster_beyond_the_spread(self) -> None:
        def chosen(native_s: float, spread: float) -> str:
            timings = (
                timing("ring", 1.0, spread=spread),
                timing("native", native_s, spread=spread),
            )
            return Chooser(Fabric.uniform(2, 2), timings).of(KIB).algorithm

        assert chosen(0.8, 0.1) == "native"
        assert chosen(0.8, 0.5) == "ring"
        assert chosen(1.0, 0.0) == "ring"

    def test_beyond_what_was_timed_a_price_decides_where_links_are_known(self) -> None:
        slow = [timing(name, 9.0) for name in ("hierarchical_leader", "halving_doubling")]
        timings = (timing("ring", 0.001), timing("hierarchical", 0.002), *slow)
        priced = Chooser(fabric(2, 2, 25 * MB, 5_000 * MB), timings)
        assert priced.of(KIB).algorithm == "ring"
        assert priced.of(MB).algorithm == "hierarchical"
        assert Chooser(Fabric.uniform(2, 2), timings).of(MB).algorithm == "ring"

    def test_beyond_the_largest_size_that_is_timed_its_order_stays(self) -> None:
        timings = (timing("halving_doubling", 1.0, 16 * MIB), timing("hierarchical", 2.0, 16 * MIB))
        priced = Chooser(fabric(2, 2, 25 * MB, 5_000 * MB), timings)
        assert priced.of(64 * MB).algorithm == "halving_doubling"
        assert not priced.must_price(64 * MB)

    def test_without_either_the_first_that_fits(self) -> None:
        assert Chooser(Fabric((0,))).of(MB).algorithm == "ring"


@pytest.mark.parametrize(
    ("most_bytes", "sizes"),
    [
        (1, [KIB]),
        (2 * KIB, [KIB]),
        (2 * KIB + 1, [KIB, 4 * KIB]),
        (MIB, [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB]),
        (64 * MIB, [KIB * 4**power for power in range(8)]),
    ],
)
def test_sizes_are_timed_up_to_one_that_is_near(most_bytes: int, sizes: list[int]) -> None:
    assert list(timed_sizes(most_bytes)) == sizes
