"""What a bench came to: a row for each size and contender, made of what every rank told.

Owns the arithmetic of the table and the keys of `bench allreduce --json`. Reads and runs nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from ddp.cost import algorithm_bandwidth, bus_bandwidth, inter_node_bound, relative_error
from ddp.fixed import in_a_row
from jobs.bench.asked import BASE, BenchSpec, Contender
from jobs.bench.launcher import Found
from jobs.compare.stats import Estimate, round_by_round
from jobs.owncode import short
from jobs.spread import Spread, spread


@dataclass(frozen=True)
class Shape:
    """Where it ran."""

    nodes: int
    ranks_per_node: int

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks_per_node}"


@dataclass(frozen=True)
class Row:
    """One contender with one size. None is a figure that does not exist here.

    `rounds_s`: of every counted round, what its slowest rank took for an all-reduce. `counted`:
    the ranks themselves counted what they sent; else it is what gloo's ring sends.
    """

    contender: Contender
    size_bytes: int
    dtype: str
    shape: Shape
    rounds_s: tuple[float, ...]
    goes_through: str
    segments: int
    sent_bytes: int
    counted: bool
    limit_s: float | None
    predicted_s: float | None
    wrong: int
    over_native: Estimate | None
    native_sent_bytes: int | None
    fastest: bool = False

    @property
    def name(self) -> str:
        """The contender; where it chooses among others also what it chose."""
        chosen = self.goes_through
        own = self.contender
        return own.name if chosen == own.algorithm else f"{own.name}: {short(chosen)}"

    @property
    def time(self) -> Spread:
        found = spread(self.rounds_s)
        assert found is not None
        return found

    @property
    def algbw(self) -> float:
        return algorithm_bandwidth(self.size_bytes, self.time.median) or 0.0

    @property
    def busbw(self) -> float | None:
        return bus_bandwidth(self.algbw, self.shape.num_ranks)

    @property
    def payload_ratio(self) -> float:
        return self.sent_bytes / self.size_bytes

    @property
    def bound_ratio(self) -> float | None:
        return self.sent_bytes / self._least_bytes if self._least_bytes else None

    @property
    def limit_ratio(self) -> float | None:
        return self.limit_s / self.time.median if self.limit_s else None

    @property
    def limit_of(self) -> str | None:
        """What sets the limit: the wire, or on one node its memory."""
        if self.limit_s is None:
            return None
        return "wire" if self.shape.nodes > 1 else "memory"

    @property
    def ceiling(self) -> float | None:
        """How many times as fast as native an algorithm of the least bytes is, at most."""
        if self.native_sent_bytes is None or not self._least_bytes:
            return None
        return self.native_sent_bytes / self._least_bytes

    @property
    def predicted_error(self) -> float | None:
        if self.predicted_s is None:
            return None
        return relative_error(self.predicted_s, self.time.median)

    @property
    def _least_bytes(self) -> float:
        return inter_node_bound(self.size_bytes, self.shape.nodes)

    def to_json(self) -> dict[str, Any]:
        time = asdict(self.time)
        ratio = self.over_native
        return {
            "algorithm": self.contender.algorithm,
            "ring_order": self.contender.ring_order,
            "placement": self.contender.placement,
            "size_bytes": self.size_bytes,
            "dtype": self.dtype,
            "nnodes": self.shape.nodes,
            "nproc_per_node": self.shape.ranks_per_node,
            "time_s": {key: time[key] for key in ("median", "p10", "p90", "n")},
            "rounds_s": list(self.rounds_s),
            "reductions_per_round": in_a_row(self.size_bytes),
            "goes_through": self.goes_through,
            "segments": self.segments,
            "algbw_bytes_per_second": self.algbw,
            "busbw_bytes_per_second": self.busbw,
            "payload_bytes": self.sent_bytes,
            "payload_counted": self.counted,
            "payload_bytes_ratio": self.payload_ratio,
            "bound_ratio": self.bound_ratio,
            "limit_s": self.limit_s,
            "limit_ratio": self.limit_ratio,
            "limit_of": self.limit_of,
            "speedup_over_native": ratio.value if ratio else None,
            "speedup_over_native_low": ratio.low if ratio else None,
            "speedup_over_native_high": ratio.high if ratio else None,
            "ceiling_over_native": self.ceiling,
            "predicted_s": self.predicted_s,
            "predicted_error_ratio": self.predicted_error,
            "fastest": self.fastest,
            "wrong": self.wrong,
        }


def ratio_of(base: Row, other: Row) -> Estimate:
    """How many times as fast `other` is as `base`: they took turns in the same rounds."""
    if base is other:
        return Estimate(1.0, None, None)
    return round_by_round(base.rounds_s, other.rounds_s)


def rows_of(bench: BenchSpec, shape: Shape, found: Found) -> list[Row]:
    """By size, then by contender."""
    rows = []
    for size in range(len(bench.sizes_bytes)):
        group = [_row(bench, shape, found, size, each) for each in range(len(bench.contenders))]
        rows += _held_together(group)
    return rows


def _row(bench: BenchSpec, shape: Shape, found: Found, size: int, each: int) -> Row:
    told = found.told["entries"][size][each]
    ranks = found.ranks
    sent: dict[int, int] = {}
    for rank in ranks:
        if rank["sent"][size][each] is not None:
            sent[rank["node"]] = sent.get(rank["node"], 0) + rank["sent"][size][each]
    return Row(
        contender=bench.contenders[each],
        size_bytes=bench.sizes_bytes[size],
        dtype=bench.dtype,
        shape=shape,
        rounds_s=tuple(
            max(times)
            for times in zip(*(rank["seconds"][size][each] for rank in ranks), strict=True)
        ),
        goes_through=told["goes_through"],
        segments=told["segments"],
        sent_bytes=max(sent.values()) if sent else told["sent_bytes"],
        counted=bool(sent),
        limit_s=told["limit_s"] or _memory_s(found, size),
        predicted_s=told["predicted_s"],
        wrong=sum(rank["wrong"][size][each] for rank in ranks),
        over_native=None,
        native_sent_bytes=None,
    )


def _memory_s(found: Found, size: int) -> float | None:
    """How long memory took for the least that must be read and written, from when the first rank
    began to when the last one had ended."""
    rounds = zip(*(rank["memory"][size] for rank in found.ranks), strict=True)
    took_s = [max(end for _, end in times) - min(start for start, _ in times) for times in rounds]
    return median(took_s) if took_s else None


def _held_together(group: Sequence[Row]) -> list[Row]:
    """The rows of one size, each beside native on ranks placed alike; the fastest is marked."""
    best = min(group, key=lambda row: row.time.median)
    sure = all(ratio_of(row, best).sure for row in group if row is not best)
    held = []
    for row in group:
        base = _base(group, row)
        held.append(
            replace(
                row,
                over_native=ratio_of(base, row) if base else None,
                native_sent_bytes=base.sent_bytes if base else None,
                fastest=row is best and sure and len(group) > 1,
            )
        )
    return held


def _base(group: Sequence[Row], row: Row) -> Row | None:
    placement = row.contender.placement
    return next(
        (
            each
            for each in group
            if each.contender.algorithm == BASE and each.contender.placement == placement
        ),
        None,
    )
