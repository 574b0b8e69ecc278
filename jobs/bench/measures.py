"""The figures that floors are set for: which rows each needs, and how it follows from them. Pure.

Every measure has its words, the unit of its number, and the sizes and contenders that must have
been timed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, Protocol

from ddp.algorithms import ALGORITHMS
from jobs.bench.asked import BASE, Contender
from jobs.bench.rows import Row, ratio_of
from jobs.bench.sizes import size_words
from jobs.owncode import reduces

MB, KIB = 10**6, 2**10
SMALL = (16, 4 * KIB, 64 * KIB)
LARGE = (64 * KIB, 2**20, 4 * MB, 32 * MB, 64 * MB)
PREDICTED = (64 * KIB, 2**20, 4 * MB, 32 * MB)
WHOLE_FROM = 4 * MB
STAR = "parameter_server"
"""Timed by no check: many senders into one NIC lose packets, which no price knows."""
Kind = Literal["median", "worst", "small"]
Unit = Literal["", "x", "%", "ms", "sizes"]


class Measure(Protocol):
    """One kind of figure."""

    @property
    def words(self) -> str: ...

    @property
    def unit(self) -> Unit: ...

    @property
    def sizes_bytes(self) -> tuple[int, ...]: ...

    @property
    def contenders(self) -> tuple[Contender, ...]: ...

    def of(self, rows: Sequence[Row]) -> float: ...


class _Measure:
    unit: Unit = ""

    @property
    def contenders(self) -> tuple[Contender, ...]:
        raise NotImplementedError


def who(
    algorithm: str, placement: Literal["contiguous", "interleaved"] = "contiguous"
) -> Contender:
    return Contender(algorithm=algorithm, placement=placement)


def find(rows: Iterable[Row], contender: Contender, size_bytes: int) -> Row:
    """Raises LookupError where it was not timed."""
    for row in rows:
        if row.contender == contender and row.size_bytes == size_bytes:
            return row
    raise LookupError(f"{contender.name}, {size_words(size_bytes)}")


@dataclass(frozen=True)
class LimitRatio(_Measure):
    """How much of the wire's limit it reaches."""

    algorithm: str
    size_bytes: int

    @property
    def words(self) -> str:
        return f"{self.algorithm}, {size_words(self.size_bytes)}: of wire limit"

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return (self.size_bytes,)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return (who(self.algorithm),)

    def of(self, rows: Sequence[Row]) -> float:
        return find(rows, who(self.algorithm), self.size_bytes).limit_ratio or 0.0


@dataclass(frozen=True)
class BoundRatio(LimitRatio):
    """What the busiest node sends over the least that it must."""

    @property
    def words(self) -> str:
        return f"{self.algorithm}, {size_words(self.size_bytes)}: sent over least"

    def of(self, rows: Sequence[Row]) -> float:
        ratio = find(rows, who(self.algorithm), self.size_bytes).bound_ratio or 0.0
        return round(ratio, 4)  # segments may differ by an element


@dataclass(frozen=True)
class OverNative(LimitRatio):
    """How many times as fast as native."""

    unit: Unit = "x"

    @property
    def words(self) -> str:
        return f"{self.algorithm} over native, {size_words(self.size_bytes)}"

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return (who(BASE), who(self.algorithm))

    def of(self, rows: Sequence[Row]) -> float:
        base, own = (find(rows, each, self.size_bytes) for each in self.contenders)
        return ratio_of(base, own).value


@dataclass(frozen=True)
class Mixed(_Measure):
    """native on interleaved ranks against ours on the same ranks."""

    size_bytes: int
    unit: Unit = "x"

    @property
    def words(self) -> str:
        return f"hierarchical over native, interleaved, {size_words(self.size_bytes)}"

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return (self.size_bytes,)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return (who(BASE, "interleaved"), who("hierarchical", "interleaved"))

    def of(self, rows: Sequence[Row]) -> float:
        base, own = (find(rows, each, self.size_bytes) for each in self.contenders)
        return ratio_of(base, own).value


@dataclass(frozen=True)
class Shuffled(Mixed):
    """How much slower ours is for ranks that are interleaved."""

    unit: Unit = "%"

    @property
    def words(self) -> str:
        return f"hierarchical slowed by interleaving, {size_words(self.size_bytes)}"

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return (who("hierarchical"), who("hierarchical", "interleaved"))

    def of(self, rows: Sequence[Row]) -> float:
        return 1 / super().of(rows) - 1


@dataclass(frozen=True)
class AutoAgainstBest(_Measure):
    """How much slower auto is than the best of all, at the worst of the sizes."""

    unit: Unit = "%"

    @property
    def words(self) -> str:
        return f"auto against the best, {size_words(LARGE[0])} to {size_words(LARGE[-1])}, worst"

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return LARGE

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return tuple(who(name) for name in ALGORITHMS if reduces(name) and name != STAR)

    def of(self, rows: Sequence[Row]) -> float:
        return max(self._behind(rows, size) for size in self.sizes_bytes)

    def _behind(self, rows: Sequence[Row], size: int) -> float:
        found = [find(rows, each, size) for each in self.contenders]
        best = min(row.time.median for row in found)
        return find(rows, who("auto"), size).time.median / best - 1


@dataclass(frozen=True)
class AutoBehind(AutoAgainstBest):
    """The same for small sizes, in milliseconds."""

    unit: Unit = "ms"

    @property
    def words(self) -> str:
        return f"auto behind the best, {size_words(SMALL[0])} to {size_words(SMALL[-1])}, worst"

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return SMALL

    def _behind(self, rows: Sequence[Row], size: int) -> float:
        found = [find(rows, each, size).time.median for each in self.contenders]
        return (find(rows, who("auto"), size).time.median - min(found)) * 1e3


@dataclass(frozen=True)
class AutoSlower(AutoAgainstBest):
    """At how many sizes auto is slower than native by more than the spread."""

    unit: Unit = "sizes"

    @property
    def words(self) -> str:
        return "sizes at which auto is slower than native"

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*SMALL, *LARGE)))

    def of(self, rows: Sequence[Row]) -> float:
        ratios = [
            ratio_of(find(rows, who(BASE), size), find(rows, who("auto"), size))
            for size in self.sizes_bytes
        ]
        return sum(each.high is not None and each.high < 1 for each in ratios)


@dataclass(frozen=True)
class PredictionError(_Measure):
    """How far predictions are off, whichever way: their median or the worst, over all rows."""

    kind: Kind
    unit: Unit = "%"

    @property
    def words(self) -> str:
        if self.kind == "small":
            return f"prediction off, {size_words(PREDICTED[0])} to 4 MB, worst"
        return f"prediction off, from 4 MB up, {self.kind}"

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        small = self.kind == "small"
        return tuple(size for size in PREDICTED if (size < WHOLE_FROM) == small)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return tuple(map(who, ("native", "ring", "hierarchical")))

    def of(self, rows: Sequence[Row]) -> float:
        small = self.kind == "small"
        off = [
            abs(row.predicted_error)
            for row in rows
            if row.predicted_error is not None
            and (row.size_bytes < WHOLE_FROM) == small
            and row.size_bytes >= PREDICTED[0]
        ]
        return median(off) if self.kind == "median" else max(off)
