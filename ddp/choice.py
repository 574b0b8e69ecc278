"""Which algorithm reduces a buffer of a given size fastest here, and in how many segments.

Owns the choice behind `auto`. Pure, so that ranks that know the same choose the same; what it is
made from is measured before a run (ddp.auto).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import median, quantiles
from typing import NamedTuple

from ddp.algorithms import ALGORITHMS, ring_schedule
from ddp.cost import price
from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.plan import choose_segments
from ddp.schedule import Schedule

NATIVE, GLOO_SEGMENTS = "native", 2
TIE = 1.02
"""What takes this many times as long as the fastest is as good: the first of the registry."""
SMALLEST_BYTES, LARGEST_BYTES, APART = 1024, 16 * 2**20, 4
"""Sizes at which algorithms are timed, each so many times the one before."""


class Choice(NamedTuple):
    """What a buffer goes through."""

    algorithm: str
    segments: int


@dataclass(frozen=True)
class Timing:
    """Seconds of an all-reduce of `num_bytes`, by round: each as long as its slowest rank took."""

    algorithm: str
    num_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Chooser:
    """Chooses by the timings at the nearest size, else by price.

    Timings end where a round takes long. That is a size at which the wire decides, or the largest
    there is: beyond the one a price is right, beyond the other the order stays what it is. Without
    either the first algorithm that fits is taken.
    """

    fabric: Fabric
    timings: tuple[Timing, ...] = ()
    _known: dict[int, Choice] = field(default_factory=dict, compare=False, repr=False)

    def of(self, num_bytes: int) -> Choice:
        """For a buffer of `num_bytes`; the same whenever it is asked."""
        if num_bytes not in self._known:
            self._known[num_bytes] = self._choose(num_bytes)
        return self._known[num_bytes]

    def must_price(self, num_bytes: int) -> bool:
        """Whether the timings do not reach so far."""
        last_bytes = max((each.num_bytes for each in self.timings), default=0)
        return last_bytes < LARGEST_BYTES and num_bytes > last_bytes * APART**0.5

    def _choose(self, num_bytes: int) -> Choice:
        algorithm = next(iter(candidates(self.fabric)))
        if self.fabric.links and self.must_price(num_bytes):
            algorithm = fastest_priced(self.fabric, num_bytes, self.timings)
        elif self.timings:
            sizes = {each.num_bytes for each in self.timings}
            nearest = min(sizes, key=lambda size: abs(log(size / max(1, num_bytes))))
            algorithm = fastest_timed([each for each in self.timings if each.num_bytes == nearest])
        return Choice(algorithm, choose_segments(algorithm, num_bytes, self.fabric.num_nodes))


def timed_sizes(most_bytes: int) -> Iterator[int]:
    """From the smallest to one that is near `most_bytes`, or to the largest."""
    num_bytes = SMALLEST_BYTES
    yield num_bytes
    while num_bytes < min(LARGEST_BYTES, most_bytes / APART**0.5):
        num_bytes *= APART
        yield num_bytes


def candidates(fabric: Fabric) -> dict[str, Schedule]:
    """Every registered algorithm that has a schedule for this fabric, in the registry's order."""
    found = {}
    for name, algorithm in ALGORITHMS.items():
        try:
            if algorithm.build:
                found[name] = algorithm.build(fabric, "contiguous", 0)
        except UsageError:  # it does not serve this number of ranks
            continue
    return found


def fastest_timed(timings: Sequence[Timing]) -> str:
    """The backend's own only where three quarters of its rounds beat three quarters of the best."""
    own = [each for each in timings if each.algorithm != NATIVE]
    medians = [median(each.seconds) for each in own]
    best = next(
        each for each, own_s in zip(own, medians, strict=True) if own_s <= TIE * min(medians)
    )
    for native in timings:
        if native.algorithm == NATIVE and _quartiles(native)[1] < _quartiles(best)[0]:
            return NATIVE
    return best.algorithm


def fastest_priced(fabric: Fabric, num_bytes: int, timings: Sequence[Timing] = ()) -> str:
    """By the cost model, with what its price lacked of each algorithm's last timing.

    That is mostly computing, which ranks that outnumber cores have to share: much of a small
    buffer's time, little of a large one's.
    """
    schedules: dict[str, Schedule] = candidates(fabric)
    schedules[NATIVE] = ring_schedule(range(fabric.num_ranks))  # as gloo has it, in rank order

    def price_s(name: str, size: int) -> float:
        segments = (
            GLOO_SEGMENTS if name == NATIVE else choose_segments(name, size, fabric.num_nodes)
        )
        return price(schedules[name], fabric, size, segments).seconds

    last = {each.algorithm: each for each in sorted(timings, key=lambda each: each.num_bytes)}
    prices = {name: price_s(name, num_bytes) for name in schedules}
    for name, timing in last.items():
        prices[name] += max(0.0, median(timing.seconds) - price_s(name, timing.num_bytes))
    return next(name for name in prices if prices[name] <= TIE * min(prices.values()))


def _quartiles(timing: Timing) -> tuple[float, float]:
    low_s, _, high_s = quantiles(timing.seconds, n=4, method="inclusive")
    return low_s, high_s
