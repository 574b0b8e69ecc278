"""The figures of `make bench-ddp`: how each follows from times, and whether it is good enough.

Pure arithmetic and text. A figure has a value for each round; its median counts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`values` by round. `floor` and `target`: the worst that passes, and what is wanted; they are
    the most there may be, or the least where `more_is_better`. None: only reported.
    """

    name: str
    values: Sequence[float]
    floor: float | None = None
    target: float | None = None
    more_is_better: bool = False
    unit: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def passes(self) -> bool:
        return self.reaches(self.floor)

    def reaches(self, limit: float | None) -> bool:
        """Whether the median is at the limit or on its good side."""
        if limit is None:
            return True
        return self.median >= limit if self.more_is_better else self.median <= limit

    def row(self) -> str:
        """One line of the table."""
        low, high = spread(self.values)
        measured = f"{self._number(self.median)} ({self._number(low)} - {self._number(high)})"
        words = [self._limit(self.floor), self._limit(self.target), measured, self._verdict()]
        return f"| {self.name} | {' | '.join(words)} |"

    def _verdict(self) -> str:
        if self.floor is None:
            return ""
        if not self.passes:
            return "UNDER THE FLOOR"
        return "target reached" if self.reaches(self.target) else "passes"

    def _limit(self, limit: float | None) -> str:
        if limit is None:
            return ""
        return f"{'at least' if self.more_is_better else 'at most'} {limit:g}{self.unit}"

    def _number(self, value: float) -> str:
        return f"{value:.3g}{self.unit}" if value >= 100 else f"{value:.2f}{self.unit}"


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The tenth and the ninetieth percentile; of one value, that value."""
    if len(values) < 2:
        return values[0], values[0]
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return deciles[0], deciles[-1]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def pipeline_bound_s(
    outside_s: float, backward_s: float, first_ready_s: float, buckets_s: Sequence[float]
) -> float:
    """The shortest step that overlap allows: nothing can end before backward and the last bucket,
    nor before all buckets have gone one after another once the first was ready.

    `outside_s`: what there is of a step besides backward and reduction.
    """
    return outside_s + max(backward_s + buckets_s[-1], first_ready_s + sum(buckets_s))


def overlap_efficiency(sequential_s: float, overlapped_s: float, bound_s: float) -> float:
    """Which part of what overlap can save at most it did save. Raises ValueError for nothing."""
    possible_s = sequential_s - bound_s
    if possible_s <= 0:
        raise ValueError(
            f"a step takes {sequential_s:.4f} s without overlap and {bound_s:.4f} s at best with "
            "it: there is nothing to hide"
        )
    return (sequential_s - overlapped_s) / possible_s


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Each round as its slowest rank saw it."""
    return [max(values) for values in zip(*by_rank, strict=True)]
