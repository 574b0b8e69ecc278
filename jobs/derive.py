"""What the records of all ranks say together about each step: derived by the reader, not the rank.

Owns the definitions of communication work, busy time and straggler wait. Reads no file.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddp.timing import BucketTiming
from jobs.records import BaselineRecord, RankRecords, StepRecord

PHASES = ("data", "forward", "backward", "comm_exposed", "optimizer", "other")

Interval = tuple[int, int]
Reduction = tuple[int, int]
"""Where a step reduces more than once: which time it was, and the bucket."""


@dataclass(frozen=True)
class StepFigures:
    """One step over all ranks. Times in seconds; means over ranks unless they say otherwise.

    `step_s` is the slowest rank's. `comm_work_s` sums the buckets' durations and `comm_busy_s`
    takes their union, a bucket starting when its last rank was ready. `straggler_wait_s` is the
    exposed time in which the awaited bucket was not ready on some rank, and `held_up_by` shares it
    out to the ranks that were last. `hidden_s` is busy time in which the rank did not wait.
    `time_lost_s` is the most by which the phases of a rank miss its step: 0 but for rounding.
    `start_ns` and `end_ns` are when its first rank began and its last one ended.
    Where the wrapper does not tell its buckets, whatever is derived from them is None.
    Bytes are sums over the ranks of each node, None where a rank could not tell.
    """

    step: int
    start_ns: int
    end_ns: int
    step_s: float
    slowest_rank: int
    phase_s: Mapping[str, float]
    comm_work_s: float | None
    comm_busy_s: float | None
    straggler_wait_s: float | None
    hidden_s: float | None
    time_lost_s: float
    held_up_by: Mapping[int, float]
    intra_node_bytes: tuple[int | None, ...]
    inter_node_bytes: tuple[int | None, ...]
    nic_tx_bytes: tuple[int | None, ...]
    bucket_bytes: int | None
    samples: int
    loss: float | None


@dataclass(frozen=True)
class RankCommunication:
    """One rank's part of a step: the times that StepFigures has as means over ranks."""

    work_ns: int
    busy_ns: int
    straggler_ns: int
    hidden_ns: int
    held_up_by_ns: Counter[int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, as disjoint intervals in order; empty and reversed ones vanish."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    """How long the union of the intervals lasts."""
    return sum(end - start for start, end in union(intervals))


def common(left: Iterable[Interval], right: Iterable[Interval]) -> int:
    """How long both last at once."""
    left, right = union(left), union(right)
    return length(left) + length(right) - length([*left, *right])


def complete_steps(ranks: Sequence[RankRecords]) -> list[list[StepRecord]]:
    """The steps that every rank has recorded, each as one record a rank, in order."""
    by_step = [{record.step: record for record in rank.steps} for rank in ranks]
    shared = set.intersection(*(set(records) for records in by_step)) if by_step else set()
    return [[records[step] for records in by_step] for step in sorted(shared)]


def baseline_step_s(ranks: Sequence[RankRecords]) -> list[float]:
    """Seconds of each step without network: the slowest rank's, where all have recorded it."""
    return [max(step) for step in baseline_rank_s(ranks)]


def baseline_rank_s(ranks: Sequence[RankRecords]) -> list[list[float]]:
    """Seconds of each step without network on every rank, where all have recorded it."""

    def by_place(records: Sequence[BaselineRecord]) -> dict[tuple[int, int], float]:
        return {(entry.block, entry.record.step): entry.record.step_s for entry in records}

    places = [by_place(rank.baseline) for rank in ranks]
    shared = set.intersection(*(set(steps) for steps in places)) if places else set()
    return [[steps[place] for steps in places] for place in sorted(shared)]


def step_figures(records: Sequence[StepRecord], node_of: Sequence[int]) -> StepFigures:
    """One step: `records[rank]` of every rank, on node `node_of[rank]`."""
    return figures_of_step(records, communication(records), node_of)


def figures_of_step(
    records: Sequence[StepRecord],
    ranks: Sequence[RankCommunication] | None,
    node_of: Sequence[int],
) -> StepFigures:
    """The same, for a reader that has derived each rank's communication already."""
    num_ranks = len(records)
    step_s = [record.step_s for record in records]
    held_up_by: Counter[int] = sum((rank.held_up_by_ns for rank in ranks or ()), Counter())
    losses = [record.loss for record in records if record.loss is not None]
    return StepFigures(
        step=records[0].step,
        start_ns=min(record.t_ns for record in records),
        end_ns=max(record.t_ns + round(record.step_s * 1e9) for record in records),
        step_s=max(step_s),
        slowest_rank=step_s.index(max(step_s)),
        phase_s={
            phase: sum(getattr(record, f"{phase}_s") for record in records) / num_ranks
            for phase in PHASES
        },
        comm_work_s=_mean_s(rank.work_ns for rank in ranks) if ranks else None,
        comm_busy_s=_mean_s(rank.busy_ns for rank in ranks) if ranks else None,
        straggler_wait_s=_mean_s(rank.straggler_ns for rank in ranks) if ranks else None,
        hidden_s=_mean_s(rank.hidden_ns for rank in ranks) if ranks else None,
        time_lost_s=max(_time_lost_s(record) for record in records),
        held_up_by={rank: waited / num_ranks / 1e9 for rank, waited in held_up_by.items()},
        intra_node_bytes=_per_node([record.intra_node_bytes for record in records], node_of),
        inter_node_bytes=_per_node([record.inter_node_bytes for record in records], node_of),
        nic_tx_bytes=_nic_tx(records, node_of),
        bucket_bytes=_bucket_bytes(records[0]),
        samples=sum(record.samples for record in records),
        loss=sum(losses) / num_ranks if len(losses) == num_ranks else None,
    )


def _mean_s(times_ns: Iterable[int]) -> float:
    return fmean(times_ns) / 1e9


def _bucket_bytes(record: StepRecord) -> int | None:
    return None if record.buckets is None else sum(bucket.bytes for bucket in record.buckets)


def _time_lost_s(record: StepRecord) -> float:
    explained_s = sum(getattr(record, f"{phase}_s") for phase in PHASES)
    return float(max(abs(record.step_s - explained_s), -record.other_s))


def communication(records: Sequence[StepRecord]) -> list[RankCommunication] | None:
    """What each rank communicated in one step; `records[rank]` of every rank.

    None where a rank does not tell its buckets.
    """
    told = [
        (record, reductions(record.buckets)) for record in records if record.buckets is not None
    ]
    if len(told) < len(records):
        return None
    ready: dict[Reduction, tuple[int, int]] = {}  # -> (when its last rank was ready, that rank)
    for rank, (_, buckets) in enumerate(told):
        for which, bucket in buckets:
            ready[which] = max(ready.get(which, (0, 0)), (bucket.ready_ns, rank))
    return [_rank_communication(record, buckets, ready) for record, buckets in told]


def reductions(buckets: Sequence[BucketTiming]) -> list[tuple[Reduction, BucketTiming]]:
    """The buckets in the order in which they were reduced, by which reduction each was."""
    seen: Counter[int] = Counter()
    found = []
    for bucket in sorted(buckets, key=lambda bucket: bucket.end_ns):
        found.append(((seen[bucket.index], bucket.index), bucket))
        seen[bucket.index] += 1
    return sorted(found, key=lambda one: one[0])


def _rank_communication(
    record: StepRecord,
    buckets: Sequence[tuple[Reduction, BucketTiming]],
    ready: Mapping[Reduction, tuple[int, int]],
) -> RankCommunication:
    exposed = union(record.exposed)
    spans = [_span(bucket, ready[which][0]) for which, bucket in buckets]
    held_up_by: Counter[int] = Counter()
    previous_end = 0
    for which, bucket in buckets:
        last_ready, last_rank = ready[which]
        awaited = (max(previous_end, bucket.ready_ns), min(bucket.end_ns, last_ready))
        held_up_by[last_rank] += common(exposed, [awaited])
        previous_end = max(previous_end, bucket.end_ns)
    busy = length(spans)
    return RankCommunication(
        work_ns=sum(end - start for start, end in spans),
        busy_ns=busy,
        straggler_ns=held_up_by.total(),
        hidden_ns=busy - common(spans, exposed),
        held_up_by_ns=+held_up_by,
    )


def _span(bucket: BucketTiming, last_ready_ns: int) -> Interval:
    return min(max(bucket.start_ns, last_ready_ns), bucket.end_ns), bucket.end_ns


def _per_node(rank_bytes: Sequence[int | None], node_of: Sequence[int]) -> tuple[int | None, ...]:
    totals: list[int | None] = [0] * (max(node_of) + 1)
    for node, sent in zip(node_of, rank_bytes, strict=True):
        total = totals[node]
        totals[node] = None if total is None or sent is None else total + sent
    return tuple(totals)


def _nic_tx(records: Sequence[StepRecord], node_of: Sequence[int]) -> tuple[int | None, ...]:
    counted: list[int | None] = [None] * (max(node_of) + 1)
    for node, record in zip(node_of, records, strict=True):
        if record.nic_tx_bytes is not None:
            counted[node] = record.nic_tx_bytes
    return tuple(counted)
