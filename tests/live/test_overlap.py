"""Reducing while backward computes: what it must do at every step, and what it must save.

One run in which the same training takes turns with and without overlap, in the same processes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import pytest

from jobs.derive import length
from jobs.records import RankRecords, StepRecord, read_records, records_path
from jobs.spec import load_job
from tests.live.lab import lab
from tests.live.turns import run_ranks

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120)]

RANKS = 4
STEPS = 7
JOB = (
    f"train.steps={STEPS}",
    "train.warmup_steps=1",
    "data.batch_size=1",  # little to compute, so that four ranks on two cores keep their pace
    "model.layers=8",  # the first bucket is ready early
    "model.width=88",
    "ddp.bucket_cap_mb=0.25",
    "pace={forward_ms: 20, backward_ms: 180}",  # about as long as 3.5 MB take at 200 mbit/s
)
TARGET = "tests.live.overlap_rank"


@dataclass(frozen=True)
class Measured:
    """The records of every rank, with overlap and without."""

    overlap: list[RankRecords]
    after: list[RankRecords]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    home = tmp_path_factory.mktemp("overlap")
    with lab(home, "2x2", "--rate", "200mbit", "--no-probe") as it:
        run_ranks(it, TARGET, home, load_job("hier", JOB))
        found = {
            name: [read_records(records_path(home / name, rank)) for rank in range(RANKS)]
            for name in ("overlap", "after")
        }
        yield Measured(**found)


def steps(ranks: list[RankRecords]) -> Iterator[tuple[StepRecord, int]]:
    """Every step of every rank, with what its NIC had received at the last gradient."""
    for rank in ranks:
        assert rank.end is not None and len(rank.steps) == STEPS
        yield from zip(rank.steps, rank.end["early_bytes"], strict=True)


def test_the_first_buckets_are_reduced_before_the_last_gradient_is_there(
    measured: Measured,
) -> None:
    """At every step, on every rank; the kernel has counted the bytes by then, too."""
    for record, early_bytes in steps(measured.overlap):
        first, *_, last = record.buckets
        assert len(record.buckets) >= 4
        assert first.end_ns < last.ready_ns
        # a node receives 2(M-1)/M of a bucket, here once its size, and more with headers
        assert early_bytes >= first.bytes
    for record, early_bytes in steps(measured.after):
        (exposed,) = record.exposed
        assert min(bucket.start_ns for bucket in record.buckets) >= exposed[0]
        # peers that are ahead may have sent what needs nothing of ours
        assert early_bytes < record.buckets[0].bytes


def test_overlap_changes_neither_bytes_sent_nor_parameters(measured: Measured) -> None:
    ranks = [*measured.overlap, *measured.after]
    sums = {rank.end["params_sha256"] for rank in ranks if rank.end}
    assert len(sums) == 1
    sent = [{record.inter_node_bytes for record in rank.steps} for rank in ranks]
    assert sent[:RANKS] == sent[RANKS:]
    assert {len(each) for each in sent} == {1}, "the same in every step"
    losses = [[record.loss for record in rank.steps] for rank in ranks]
    assert losses[:RANKS] == losses[RANKS:]


def test_overlap_saves_at_least_half_of_what_it_can_hide(measured: Measured) -> None:
    with_s, without_s = slowest_s(measured.overlap), slowest_s(measured.after)
    saved_s = median(b - a for a, b in zip(with_s, without_s, strict=True))
    records = [record for record, _ in steps(measured.after)]
    backward_s = median(record.backward_s for record in records)
    communication_s = median(
        length((bucket.start_ns, bucket.end_ns) for bucket in record.buckets) / 1e9
        for record in records
    )
    assert 0.5 < communication_s / backward_s < 2, "about equal, or there is little to hide"
    assert saved_s >= 0.5 * min(backward_s, communication_s)


def slowest_s(ranks: list[RankRecords]) -> list[float]:
    """Each step's time on its slowest rank."""
    return [max(s) for s in zip(*([r.step_s for r in rank.steps] for rank in ranks), strict=True)]
