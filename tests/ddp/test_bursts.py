"""What an idle link lets through at once, and the fixed cost of an algorithm that was timed."""

from dataclasses import replace

import pytest

from ddp.algorithms import hierarchical_schedule, ring_schedule
from ddp.cost import price
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.fixed import LARGE_BYTES, SOME_BYTES, FixedCost, price_of

PAUSE_S, RATE, BURST = 0.1, 100.0, 50.0
FREE = Link(0.0, 1e12)


def pair(burst_bytes: float = BURST, alpha_s: float = PAUSE_S) -> Fabric:
    nic = Link(alpha_s, RATE, burst_bytes)
    return Fabric((0, 1), (NodeLinks(nic, nic, FREE),) * 2)


def tokens_s(stage_bytes: float, stages: int, repeats: int = 1) -> float:
    """A token bucket by hand: full at first, filled while a stage's fixed time passes."""
    at_s, tokens = 0.0, BURST
    for _ in range(stages * repeats):
        lasting_s = max(0.0, stage_bytes - tokens) / RATE
        tokens = max(0.0, tokens - stage_bytes)
        at_s += lasting_s + PAUSE_S
        tokens = min(BURST, tokens + PAUSE_S * RATE)
    return at_s / repeats


@pytest.mark.parametrize(
    ("num_bytes", "expected_s"),
    [
        (200, 1.6),  # 100 bytes: 50 at once, 0.5 s and 0.1 s; then 10 at once, 0.9 s and 0.1 s
        (100, 0.6),  # 50 at once, 0.1 s; then 10 at once, 0.4 s and 0.1 s
        (40, 0.2),  # both stages at once: their fixed times are all
        (2, 0.2),
    ],
)
def test_an_idle_link_lets_its_burst_through(num_bytes: int, expected_s: float) -> None:
    found = price(ring_schedule((0, 1)), pair(), num_bytes)
    assert found.seconds == pytest.approx(expected_s)
    assert tokens_s(num_bytes / 2, 2) == pytest.approx(expected_s)
    assert price(ring_schedule((0, 1)), pair(0), num_bytes).seconds == pytest.approx(
        num_bytes / RATE + 2 * PAUSE_S
    )


@pytest.mark.parametrize("repeats", [1, 2, 4, 10])
@pytest.mark.parametrize("num_bytes", [20, 200, 2000])
def test_all_reduces_in_a_row_share_a_burst(num_bytes: int, repeats: int) -> None:
    found = price(ring_schedule((0, 1)), pair(), num_bytes, burst_share=1 / repeats)
    assert found.seconds == pytest.approx(tokens_s(num_bytes / 2, 2, repeats))


def test_pauses_make_good_no_more_than_a_burst() -> None:
    """A burst of 5 bytes is back after 0.05 s, half of a pause: each stage has 95 to send."""
    found = price(ring_schedule((0, 1)), pair(burst_bytes=5), 200)
    assert found.seconds == pytest.approx(2 * (0.95 + PAUSE_S))


def test_waiting_before_the_first_byte_makes_nothing_good() -> None:
    nic, inside = Link(0.2, RATE, BURST), Link(0.3, 1e12)
    fabric = Fabric((0, 0, 1, 1), (NodeLinks(nic, nic, inside),) * 2)
    found = price(hierarchical_schedule(fabric.groups), fabric, 200)
    # inside 0.3; between 100 bytes: 0.5 and 0.2; then 20 at once, 0.8 and 0.2; inside 0.3
    assert found.seconds == pytest.approx(0.3 + 0.5 + 0.2 + 0.8 + 0.2 + 0.3)


def test_segments_leave_no_pause_but_the_burst_stays_free() -> None:
    without = price(ring_schedule((0, 1)), pair(0), 800, 4).seconds
    assert without == pytest.approx(8 + PAUSE_S)
    assert price(ring_schedule((0, 1)), pair(), 800, 4).seconds == pytest.approx(without - 0.5)


COST = FixedCost(num_stages=2, small_s=0.2, some_s=0.6)


def test_an_algorithm_costs_what_it_took() -> None:
    fabric = pair(burst_bytes=1e12, alpha_s=7.0)
    ring = ring_schedule((0, 1))
    for num_bytes, expected_s in ((2, 0.2), (SOME_BYTES / 2, 0.4), (SOME_BYTES, 0.6), (1e6, 0.6)):
        found = price_of(COST, ring, fabric, int(num_bytes))
        assert found.seconds == pytest.approx(expected_s, rel=1e-3)
    assert price_of(None, ring, fabric, 2).seconds == pytest.approx(14.0)


def test_what_bytes_took_is_no_fixed_cost() -> None:
    """Where nothing passes at once, the larger of both sizes had to be sent."""
    nic = Link(7.0, SOME_BYTES / 0.3)
    fabric = Fabric((0, 1), (NodeLinks(nic, nic, FREE),) * 2)
    ring = ring_schedule((0, 1))
    assert price_of(COST, ring, fabric, SOME_BYTES).seconds == pytest.approx(0.6, rel=1e-3)
    twice = price_of(COST, ring, fabric, 2 * SOME_BYTES)
    assert twice.seconds == pytest.approx(0.3 + 2 * 0.3, rel=1e-3)
    slower = replace(COST, some_s=0.1)  # as good as it gets: what a few bytes take
    assert price_of(slower, ring, fabric, SOME_BYTES).seconds == pytest.approx(0.5, rel=1e-3)


def test_what_a_burst_left_over_is_no_fixed_cost_either() -> None:
    """Timed in rows of four, which share a burst of 0.4 s: pauses make good the rest of them."""
    rate = SOME_BYTES / 0.8
    nic = Link(0.0, rate, 0.4 * rate)
    fabric = Fabric((0, 1), (NodeLinks(nic, nic, FREE),) * 2)
    ring = ring_schedule((0, 1))
    # two stages of 0.1 s; a pause between them, and in three of four one before them
    took_s = 0.2 + 0.8 - 0.1 - 0.1 - 0.75 * 0.1
    timed = replace(COST, some_s=took_s)
    assert price_of(timed, ring, fabric, SOME_BYTES, 1, 1 / 4).seconds == pytest.approx(took_s)
    alone = price_of(timed, ring, fabric, SOME_BYTES).seconds
    assert alone == pytest.approx(0.2 + 0.8 - 0.4 - 0.1)


@pytest.mark.parametrize("some_s", [0.8, 1.0, 1.5])
def test_whatever_was_timed_is_the_price_again(some_s: float) -> None:
    """The longer a stage, the more of the burst is back at the next one: what is added to its cost
    is not added to the price."""
    rate = SOME_BYTES / 0.8
    nic = Link(0.0, rate, 0.4 * rate)
    fabric = Fabric((0, 1), (NodeLinks(nic, nic, FREE),) * 2)
    found = price_of(
        replace(COST, some_s=some_s), ring_schedule((0, 1)), fabric, SOME_BYTES, 1, 0.1
    )
    assert found.seconds == pytest.approx(some_s, rel=0.003)


def test_on_one_node_what_was_timed_is_the_price() -> None:
    inside = Link(0.0, 1e12)
    fabric = Fabric((0, 0), (NodeLinks(FREE, FREE, inside),))
    timed = replace(COST, large_s=2.6)
    sizes = (4, 64, SOME_BYTES, (SOME_BYTES + LARGE_BYTES) // 2, LARGE_BYTES)
    for num_bytes, expected_s in zip(sizes, (0.2, 0.2, 0.6, 1.6, 2.6), strict=True):
        found = price_of(timed, ring_schedule((0, 1)), fabric, num_bytes)
        assert found.seconds == pytest.approx(expected_s, rel=1e-3)
    twice = price_of(timed, ring_schedule((0, 1)), fabric, 2 * LARGE_BYTES - SOME_BYTES)
    assert twice.seconds == pytest.approx(4.6)


def test_it_is_a_segment_that_costs() -> None:
    fabric = pair(burst_bytes=1e12)
    found = price_of(COST, ring_schedule((0, 1)), fabric, SOME_BYTES, segments=2)
    assert found.seconds == pytest.approx(0.4, rel=1e-3)
