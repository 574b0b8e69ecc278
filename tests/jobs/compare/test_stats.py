"""How many times as fast, and how sure: exact where nothing varies, honest where it does."""

import random

import pytest

from jobs.compare import stats
from jobs.compare.stats import Estimate, round_by_round, speed_up

SLOW, FAST = [[0.3, 0.3], [0.3, 0.3], [0.3, 0.3]], [[0.2, 0.2], [0.2, 0.2], [0.2, 0.2]]


def test_the_ratio_is_that_of_the_mean_steps() -> None:
    base, job = [[0.1, 0.5], [0.3, 0.3]], [[0.1, 0.2], [0.2, 0.1]]
    assert speed_up(base, job, paired=True).value == pytest.approx(2.0)


def test_without_noise_there_is_no_doubt() -> None:
    found = speed_up(SLOW, FAST, paired=True)
    assert (found.low, found.value, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.sure


def test_one_round_tells_nothing_of_noise() -> None:
    found = speed_up([[0.3, 0.2]], [[0.2, 0.3]], paired=True)
    assert found == Estimate(1.0, None, None)
    assert not found.sure


def test_what_slows_a_round_of_both_is_no_noise_where_they_took_turns() -> None:
    drift = [1.0, 1.7, 0.8]
    base = [[0.3 * each] * 4 for each in drift]
    job = [[0.2 * each] * 4 for each in drift]
    paired, apart = (speed_up(base, job, paired=paired) for paired in (True, False))
    assert (paired.low, paired.high) == pytest.approx((1.5, 1.5))
    assert apart.low is not None
    assert apart.low < 1 < 1.5
    assert not apart.sure


def test_two_rounds_that_differ_leave_much_open() -> None:
    """Student's t for one degree of freedom times the spread of the two rounds' mean."""
    base, job = [[0.2], [0.2]], [[0.1], [0.125]]
    found = speed_up(base, job, paired=True)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.5
    assert found.high > 6


def test_the_other_way_round_it_is_one_over_it() -> None:
    base, job = [[0.30], [0.31], [0.35]], [[0.2], [0.25], [0.21]]
    forth, back = speed_up(base, job, paired=True), speed_up(job, base, paired=True)
    assert forth.low is not None
    assert forth.high is not None
    assert (back.value, back.low, back.high) == pytest.approx(
        (1 / forth.value, 1 / forth.high, 1 / forth.low), rel=1e-6
    )


def test_the_same_steps_give_the_same_interval() -> None:
    base, job = [[0.30], [0.31], [0.35]], [[0.2], [0.25], [0.21]]
    assert speed_up(base, job, paired=True) == speed_up(base, job, paired=True)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("num_rounds", [3, 6])
def test_the_interval_covers_what_it_says(
    monkeypatch: pytest.MonkeyPatch, num_rounds: int, paired: bool
) -> None:
    """Of 100 made-up comparisons with a true ratio of 1.2; 95 are promised."""
    monkeypatch.setattr(stats, "RESAMPLES", 100)
    generator = random.Random(7)

    def turn(step_s: float, drift: float) -> list[float]:
        own = drift * generator.gauss(1, 0.03)
        return [step_s * own * generator.gauss(1, 0.02) for _ in range(5)]

    covered = 0
    for _ in range(100):
        drifts = [generator.gauss(1, 0.1) for _ in range(2 * num_rounds)]
        base = [turn(0.36, drift) for drift in drifts[:num_rounds]]
        others = drifts[:num_rounds] if paired else drifts[num_rounds:]
        found = speed_up(base, [turn(0.3, drift) for drift in others], paired=paired)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.2 <= found.high
    assert covered >= 90


def test_a_round_that_was_held_up_counts_as_one() -> None:
    base, job = [10.0, 10.2, 9.8, 10.0, 100.0], [5.0, 5.1, 4.9, 5.0, 5.0]
    found = round_by_round(base, job)
    assert found.value == pytest.approx(2.0)
    assert found.low is not None and found.high is not None
    assert found.low < 2.0 < found.high
    assert round_by_round([10.0], [5.0]) == Estimate(2.0, None, None)


def test_rounds_are_held_against_the_same_round() -> None:
    """The machine gets slower all the time, for both alike."""
    base = [10.0 * 1.5**number for number in range(8)]
    found = round_by_round(base, [each / 2 for each in base])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.sure


def test_the_interval_of_rounds_covers_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 benches of 10 rounds with a true ratio of 2, where machines only ever hold up."""
    monkeypatch.setattr(stats, "RESAMPLES", 100)
    generator = random.Random(7)

    def held_up(round_s: float) -> float:
        return round_s * (1 + abs(generator.gauss(0, 0.03)))

    covered = 0
    for _ in range(100):
        drifts = [generator.gauss(1, 0.1) for _ in range(10)]
        base = [held_up(2 * drift) for drift in drifts]
        found = round_by_round(base, [held_up(drift) for drift in drifts])
        assert found.low is not None and found.high is not None
        covered += found.low <= 2 <= found.high
    assert covered >= 90
