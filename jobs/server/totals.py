"""What a run has come to so far: counters that only grow, and each rank's newest step.

A step counts when every rank has recorded it. Reads no file.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.derive import PHASES, RankCommunication, StepFigures
from jobs.errors import RecordsError
from jobs.records import StepRecord

OF_BUCKETS = ("busy", "hidden", "straggler_wait")
SCOPES = ("intra_node", "inter_node")
DIRECTIONS = ("out", "in")
STEP_BOUNDS_S = tuple(
    float(f"{digit}e{power}") for power in range(-3, 2) for digit in (1, 1.5, 2, 3, 5, 7)
)
"""From 1 ms to 70 s, six to each power of ten: neighbours are at most 1.7 times apart."""


def amount(value: Any) -> float:
    """A number as a counter can take it: not less than 0. Raises RecordsError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RecordsError(
            f"{value!r} where a number belongs",
            rule="times, bytes and samples of a step are finite numbers",
            fix="run the job again",
        )
    return max(0.0, float(value))


@dataclass
class Histogram:
    """How many values lie in each span between the bounds; the last span has no upper one."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS_S) + 1))
    sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(STEP_BOUNDS_S, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, values up to it) for each bound, as Prometheus writes them."""
        total = 0
        pairs = []
        for bound, num_values in zip((*STEP_BOUNDS_S, math.inf), self.counts, strict=True):
            total += num_values
            pairs.append(("+Inf" if math.isinf(bound) else repr(bound), total))
        return pairs


@dataclass
class RankTotals:
    """One rank. Bytes are None where its backend does not tell, or its NIC is another rank's, and
    missing before the first step, when nobody knows. Those of `comm_s` are None where its wrapper
    does not tell its buckets."""

    rank: int
    node: str
    phase_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    comm_s: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(OF_BUCKETS, 0.0))
    sent_bytes: dict[str, float | None] = field(default_factory=dict)
    nic_bytes: dict[str, float | None] = field(default_factory=dict)
    last_step: int | None = None
    last_phase_s: dict[str, float] = field(default_factory=dict)
    last_ended_at: float | None = None

    def add(self, record: StepRecord, communication: RankCommunication | None) -> None:
        """A step that every rank has recorded."""
        for phase in PHASES:
            self.phase_s[phase] += amount(getattr(record, f"{phase}_s"))
        _grow(self.comm_s, _of_buckets(communication))
        sent = (record.intra_node_bytes, record.inter_node_bytes)
        _grow(self.sent_bytes, dict(zip(SCOPES, sent, strict=True)))
        carried = (record.nic_tx_bytes, record.nic_rx_bytes)
        _grow(self.nic_bytes, dict(zip(DIRECTIONS, carried, strict=True)))

    def note_last(self, record: StepRecord, wall_minus_monotonic_ns: int | None) -> None:
        """The newest step of this rank, whether or not its peers have come as far."""
        self.last_step = record.step + 1
        self.last_phase_s = {phase: amount(getattr(record, f"{phase}_s")) for phase in PHASES}
        if wall_minus_monotonic_ns is not None:
            started_s = (record.t_ns + wall_minus_monotonic_ns) / 1e9
            self.last_ended_at = started_s + amount(record.step_s)


def _of_buckets(told: RankCommunication | None) -> dict[str, float | None]:
    """Seconds, by OF_BUCKETS."""
    if told is None:
        return dict.fromkeys(OF_BUCKETS)
    times_ns = (told.busy_ns, told.hidden_ns, told.straggler_ns)
    return {key: time_ns / 1e9 for key, time_ns in zip(OF_BUCKETS, times_ns, strict=True)}


def _grow(totals: dict[str, float | None], more: Mapping[str, float | None]) -> None:
    for key, value in more.items():
        before = totals.get(key, 0.0)
        totals[key] = None if before is None or value is None else before + amount(value)


@dataclass
class RunTotals:
    """All ranks together. A step lasts as long as its slowest rank."""

    ranks: list[RankTotals]
    steps: int = 0
    samples: float = 0.0
    step_s: Histogram = field(default_factory=Histogram)

    def add(
        self,
        figures: StepFigures,
        records: Sequence[StepRecord],
        communication: Sequence[RankCommunication] | None,
    ) -> None:
        self.steps += 1
        self.samples += amount(figures.samples)
        self.step_s.add(amount(figures.step_s))
        for place, (rank, record) in enumerate(zip(self.ranks, records, strict=True)):
            rank.add(record, communication[place] if communication else None)
