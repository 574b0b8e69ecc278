"""The least wait for a link that is never idle, and steps at other rates, exactly."""

import pytest

from jobs.compare.model import PricedRun, faster_rate
from tests.jobs.compare_samples import MBIT_200, prediction_of, run_of

BURST = 131_072  # what an idle link of 200 Mbit/s lets through at once
RATE = 25e6


def priced(job: str, *sets: str, **compute: object) -> PricedRun:
    found = PricedRun.of(run_of(job, job, sets), prediction_of(**compute))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("job", "sent"),
    [
        ("ring", 3_000_000),
        ("native", 3_000_000),
        ("hier", 2_000_000),
        ("ring-interleaved", 6_000_000),
    ],
)
def test_the_least_wait_is_that_of_the_busiest_link(job: str, sent: int) -> None:
    """Of 2 MB a ring in order sends 1.5 times as much from each node, a hierarchy as much."""
    wire_s = (sent - BURST) / RATE
    after_backward_s = 0.01 + wire_s - 0.04  # the first gradients are there after 10 ms of 40
    assert priced(job).least_exposed_s() == pytest.approx(after_backward_s)


def test_what_fits_into_backward_costs_nothing() -> None:
    assert priced("hier", backward_s=0.2, step_s=0.25).least_exposed_s() == 0.0
    assert priced("hier", backward_s=0.2, step_s=0.25, ready_s=[0.19, 0.2]).least_exposed_s() == (
        pytest.approx((2_000_000 - BURST) / RATE - 0.01)
    )


def test_without_overlap_the_link_waits_for_the_end_of_backward() -> None:
    wire_s = (2_000_000 - BURST) / RATE
    assert priced("hier", "ddp.overlap=false").least_exposed_s() == pytest.approx(wire_s)


def test_nothing_sent_costs_nothing() -> None:
    assert priced("noop").least_exposed_s() == 0.0
    assert priced("noop").exposed_s_at(10**9) == 0.0


def test_each_reduction_of_a_step_is_waited_for() -> None:
    forgot = ("train.accumulate=4", "ddp.no_sync=false")
    once, each = priced("hier"), priced("hier", *forgot, num_reductions=4)
    least_s, at_s = once.least_exposed_s(), once.exposed_s_at(10**9)
    assert least_s and at_s
    assert each.least_exposed_s() == pytest.approx(4 * least_s)
    assert each.exposed_s_at(10**9) == pytest.approx(4 * at_s)


def test_a_barrier_costs_its_rounds() -> None:
    barrier = priced("barrier-only")
    assert barrier.least_exposed_s() == 0.0
    assert barrier.exposed_s_at(10**9) == pytest.approx(2 * 0.0005)  # four ranks: two rounds


def test_a_faster_link_costs_less_and_fixed_costs_stay() -> None:
    ring = priced("ring")
    at_200, at_1000 = ring.exposed_s_at(MBIT_200), ring.exposed_s_at(5 * MBIT_200)
    assert at_200 is not None
    assert at_1000 is not None
    wire_s = {rate: 3_000_000 / (rate / 8) for rate in (MBIT_200, 5 * MBIT_200)}
    fixed_s = 2 * 6 * 0.0005  # two buckets of six stages, each of which waits for the one before
    assert at_200 == pytest.approx(0.01 + wire_s[MBIT_200] + fixed_s - 0.04)
    assert at_1000 < at_200 / 4


def test_what_was_not_measured_is_not_priced() -> None:
    run = run_of("ring", "ring")
    assert PricedRun.of(run, None) is None
    assert PricedRun.of(run, {"step_seconds": 0.1}) is None
    assert PricedRun.of({**run, "plan": None}, prediction_of()) is None
    unknown = PricedRun.of(run, prediction_of(rate=None))
    assert unknown is not None
    assert unknown.least_exposed_s() is None
    assert unknown.exposed_s_at(10**9) is None


@pytest.mark.parametrize(
    ("limits", "rate"),
    [
        ((MBIT_200, MBIT_200), 10**9),
        ((10**9, 10**9), 10**10),
        ((MBIT_200, 10**9), 10**9),
        ((10**11, 10**11), None),
        ((MBIT_200, None), None),
        ((), None),
    ],
)
def test_the_next_usual_rate(limits: tuple[int | None, ...], rate: int | None) -> None:
    assert faster_rate(limits) == rate
