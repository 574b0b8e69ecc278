"""Records of several machines on one clock: every time as rank 0's CLOCK_MONOTONIC has it.

Owns the shift, from what each rank measured of its clock (`clocks`) before its first step and after
its last one. Needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jobs.records import BaselineRecord, RankRecords, StepRecord


@dataclass(frozen=True)
class Shift:
    """What is added to a time: between two times when it was measured it changes evenly."""

    before_ns: int
    at_ns: int
    drift: float
    """What it changes in a nanosecond."""

    @classmethod
    def of(cls, header: Mapping[str, Any] | None, end: Mapping[str, Any] | None) -> "Shift | None":
        """None where there is nothing to shift; without an end as it was at the beginning."""
        clock = (header or {}).get("clock")
        if header is None or clock is None:
            return None
        before_ns, at_ns = int(clock["offset_ns"]), int(header["monotonic_ns"])
        after = (end or {}).get("clock")
        drift = 0.0
        if end is not None and after is not None and end["monotonic_ns"] > at_ns:
            drift = (int(after["offset_ns"]) - before_ns) / (end["monotonic_ns"] - at_ns)
        return cls(before_ns, at_ns, drift) if before_ns or drift else None

    def __call__(self, t_ns: int) -> int:
        return t_ns + self.before_ns + round((t_ns - self.at_ns) * self.drift)

    def record(self, it: StepRecord) -> StepRecord:
        """The step with all of its times shifted; what lasts so long still does."""
        buckets = it.buckets and tuple(
            replace(
                bucket,
                ready_ns=self(bucket.ready_ns),
                start_ns=self(bucket.start_ns),
                end_ns=self(bucket.end_ns),
            )
            for bucket in it.buckets
        )
        exposed = tuple((self(start), self(end)) for start, end in it.exposed)
        return replace(it, t_ns=self(it.t_ns), exposed=exposed, buckets=buckets)


def on_first_clock(rank: RankRecords) -> RankRecords:
    """A rank's records, shifted; the same object where there is nothing to shift."""
    shift = Shift.of(rank.header, rank.end)
    if shift is None:
        return rank
    return replace(
        rank,
        steps=[shift.record(record) for record in rank.steps],
        baseline=[
            BaselineRecord(entry.block, shift.record(entry.record)) for entry in rank.baseline
        ],
    )
