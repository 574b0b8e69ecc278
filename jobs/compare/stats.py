"""How many times as fast one job is as another, and how sure that is.

Owns the interval: a bootstrap over rounds, widened for few rounds. Runs nothing and reads nothing.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, pstdev

Rounds = Sequence[Sequence[float]]  # the seconds of each step, round by round

RESAMPLES = 2000
SEED = 0
# Student's t, 97.5 %, by degrees of freedom: with few rounds their spread itself is a guess
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
NORMAL = 1.96


@dataclass(frozen=True)
class Estimate:
    """A ratio, and the interval that covers the true one in 95 of 100 comparisons.

    `low` and `high` are None where there is one round only.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def sure(self) -> bool:
        """Whether noise alone would hardly make such a difference."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def speed_up(base: Rounds, job: Rounds, *, paired: bool) -> Estimate:
    """Mean step of `base` / mean step of `job`.

    `paired`: round k of both was measured side by side, so that what slowed the machine then
    slowed both; a resample takes whole rounds, of both together. The spread of the resampled
    ratios' logarithms, for n rounds sqrt(n / (n - 1)) too small, times Student's t is the
    interval.
    """
    value = _ratio(base, job)
    num_rounds = min(len(base), len(job))
    if num_rounds < 2:
        return Estimate(value, None, None)
    logarithms = [math.log(ratio) for ratio in _resampled(base, job, paired)]
    spread = pstdev(logarithms) * math.sqrt(num_rounds / (num_rounds - 1))
    freedom = num_rounds - 1 if paired else len(base) + len(job) - 2
    factor = math.exp(_student(freedom) * spread)
    return Estimate(value, value / factor, value * factor)


def round_by_round(base_s: Sequence[float], job_s: Sequence[float]) -> Estimate:
    """Median over the rounds of base's time / job's time in the same round.

    For rounds of one measurement each: a round that something held up counts as one round, however
    long it was. The interval is made as `speed_up` makes it.
    """
    ratios = [base / job for base, job in zip(base_s, job_s, strict=True)]
    value, num_rounds = median(ratios), len(ratios)
    if num_rounds < 2:
        return Estimate(value, None, None)
    generator = random.Random(SEED)
    logarithms = [
        math.log(median(generator.choices(ratios, k=num_rounds))) for _ in range(RESAMPLES)
    ]
    spread = pstdev(logarithms) * math.sqrt(num_rounds / (num_rounds - 1))
    factor = math.exp(_student(num_rounds - 1) * spread)
    return Estimate(value, value / factor, value * factor)


def _resampled(base: Rounds, job: Rounds, paired: bool) -> list[float]:
    generator = random.Random(SEED)
    base_sums, job_sums = _sums(base), _sums(job)
    ratios = []
    for _ in range(RESAMPLES):
        drawn = generator.choices(range(len(base)), k=len(base))
        others = drawn if paired else generator.choices(range(len(job)), k=len(job))
        ratios.append(_mean(base_sums, drawn) / _mean(job_sums, others))
    return ratios


def _ratio(base: Rounds, job: Rounds) -> float:
    return _mean(_sums(base), range(len(base))) / _mean(_sums(job), range(len(job)))


def _sums(rounds: Rounds) -> list[tuple[float, int]]:
    """Of each round: seconds in all, and steps."""
    return [(math.fsum(steps), len(steps)) for steps in rounds]


def _mean(sums: Sequence[tuple[float, int]], drawn: Iterable[int]) -> float:
    """The mean step of the rounds that were drawn, some of them several times."""
    seconds, num_steps = 0.0, 0
    for place in drawn:
        seconds += sums[place][0]
        num_steps += sums[place][1]
    return seconds / num_steps


def _student(freedom: int) -> float:
    return STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
