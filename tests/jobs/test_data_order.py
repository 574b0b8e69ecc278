"""The order in which a rank takes its windows, pass by pass, and what is told of it."""

import pytest

from jobs.data import Batches
from jobs.inject import Delay
from jobs.spec import InjectSpec
from tests.jobs.test_data import taken, windows


def ordered(num_windows: int, num_batches: int, *, set_epoch: bool) -> tuple[list[str], list[int]]:
    """The orders that a rank of two tells of, and the windows that it took, one by one."""
    batches = Batches(windows(num_windows), 1, 1, 2, seed=0, set_epoch=set_epoch)
    seen = taken(batches, num_batches)
    return list(batches.orders), seen


def test_a_sampler_that_is_told_of_a_pass_shuffles_anew() -> None:
    orders, seen = ordered(40, 50, set_epoch=True)
    assert len(orders) == len(set(orders)) == 3
    assert seen[:20] != seen[20:40]


def test_a_sampler_that_is_not_told_repeats_its_order() -> None:
    orders, seen = ordered(40, 50, set_epoch=False)
    assert seen[:20] == seen[20:40]
    assert seen[40:] == seen[:10]
    assert orders == [orders[0]] * 3
    # the first pass is the same either way
    assert orders[0] == ordered(40, 1, set_epoch=True)[0][0]


def test_an_order_is_told_by_what_is_in_it() -> None:
    first, again = ordered(40, 1, set_epoch=True)[0], ordered(40, 20, set_epoch=True)[0]
    assert first == again and len(first) == 1
    assert first != ordered(42, 1, set_epoch=True)[0]


@pytest.mark.parametrize("set_epoch", [True, False])
def test_passes_that_were_taken_back_are_not_told_of(set_epoch: bool) -> None:
    batches = Batches(windows(10), 3, 1, 2, seed=0, set_epoch=set_epoch)
    taken(batches, 4)  # 12 of 5 a pass: in the third
    orders, position = batches.orders, batches.position
    expected = taken(batches, 5)
    assert len(batches.orders) == 6
    batches.position = position
    assert batches.orders == orders and len(orders) == 3
    assert taken(batches, 5) == expected


@pytest.mark.parametrize("set_epoch", [True, False])
def test_a_delay_tells_the_orders_of_what_it_delays(set_epoch: bool) -> None:
    batches = Batches(windows(10), 5, 0, 2, seed=0, set_epoch=set_epoch)
    slow = Delay(InjectSpec(phase="data", ms=0.1), 0).into_batches(batches)
    for _ in range(4):
        slow.next()
    assert slow is not batches
    assert slow.orders == batches.orders and len(slow.orders) == 4
