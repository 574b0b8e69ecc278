"""The time is true: a delay put into one place moves exactly that field of the records.

The one kind of test that asserts time (one-sidedly: at least most of the delay, and no other field
by as much; of each field the least over the steps, since a busy machine only adds to it).
"""

from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest

from jobs.spec import load_job
from tests.live.lab import TestLab, lab
from tests.live.turns import run_in_turn

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

DELAY_S = 0.2
MOST = 0.9 * DELAY_S
LITTLE = 0.5 * DELAY_S
PLACES = ("data", "forward", "backward", "optimizer", "bucket, bucket: 0")
PHASES = ("data_s", "forward_s", "backward_s", "comm_exposed_s", "optimizer_s", "other_s")
SETTINGS = (
    "model.layers=2",
    "model.width=64",
    "pace={forward_ms: 20, backward_ms: 40}",
    "train.steps=8",
    "train.warmup_steps=1",
)

Steps = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    with lab(tmp_path_factory.mktemp("time"), "2x2", "--rate", "1gbit", "--no-probe") as made:
        yield made


@pytest.fixture(scope="module")
def runs(it: TestLab) -> dict[str, Steps]:
    """The same job undisturbed, and with the delay in each place, in one set of ranks."""
    jobs = {"undisturbed": load_job("hier", SETTINGS)} | {
        f"phase: {place}": load_job(
            "hier", (*SETTINGS, f"inject={{phase: {place}, ms: {DELAY_S * 1000:g}}}")
        )
        for place in PLACES
    }
    lines = run_in_turn(it, it.home / "turns", jobs)
    return {
        name: [[line for line in rank if line["kind"] == "step"] for rank in ranks]
        for name, ranks in lines.items()
    }


@pytest.fixture(scope="module")
def undisturbed(runs: dict[str, Steps]) -> Steps:
    return runs["undisturbed"]


def typical(steps: Steps, rank: int, field: str) -> float:
    return min(float(record[field]) for record in steps[rank])


def moved(before: Steps, after: Steps, rank: int) -> dict[str, float]:
    """By how much each phase of a rank changed."""
    return {f: typical(after, rank, f) - typical(before, rank, f) for f in PHASES}


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_delay_in_a_phase_of_all_ranks_moves_that_phase(
    runs: dict[str, Steps], undisturbed: Steps, phase: str
) -> None:
    disturbed = runs[f"phase: {phase}"]
    for rank in range(4):
        change = moved(undisturbed, disturbed, rank)
        assert change.pop(f"{phase}_s") > MOST, rank
        assert max(change.values()) < LITTLE, (rank, change)


def test_a_delay_in_a_bucket_moves_that_bucket_and_what_is_exposed(
    runs: dict[str, Steps], undisturbed: Steps
) -> None:
    disturbed = runs["phase: bucket, bucket: 0"]
    for rank in range(4):
        change = moved(undisturbed, disturbed, rank)
        assert change.pop("comm_exposed_s") > LITTLE, rank  # the rest hides behind backward
        assert max(change.values()) < LITTLE, (rank, change)
        assert bucket_s(disturbed, rank, 0) > DELAY_S
        for index in range(1, len(disturbed[rank][0]["buckets"])):
            assert bucket_s(disturbed, rank, index) - bucket_s(undisturbed, rank, index) < LITTLE


def test_a_slow_rank_is_named_by_the_others_waiting(it: TestLab, undisturbed: Steps) -> None:
    inject = f"inject={{phase: forward, rank: 2, ms: {DELAY_S * 1000:g}}}"
    summary = it.run("hier", *SETTINGS, inject)
    disturbed = it.steps(summary["run_id"])
    change = moved(undisturbed, disturbed, 2)
    assert change.pop("forward_s") > MOST
    assert max(change.values()) < LITTLE, change
    for rank in (0, 1, 3):
        change = moved(undisturbed, disturbed, rank)
        # what a rank waited before is gone: it now waits for rank 2 and for nothing else, and less
        # in a step in which the machine held it up, too
        del change["comm_exposed_s"]
        waited_s = [
            median(float(record["comm_exposed_s"]) for record in steps[rank])
            for steps in (undisturbed, disturbed)
        ]
        assert waited_s[1] - waited_s[0] > 0.7 * DELAY_S, (rank, waited_s)
        assert max(change.values()) < LITTLE, (rank, change)
    # three of four ranks wait for the fourth
    assert summary["comm_seconds"]["straggler_wait"] > 0.75 * 0.7 * DELAY_S
    assert "slower rank" in summary["bottleneck"] and "rank 2" in summary["bottleneck"]


def test_every_step_adds_up(undisturbed: Steps) -> None:
    for steps in undisturbed:
        for record in steps:
            assert sum(record[f] for f in PHASES) == pytest.approx(record["step_s"], abs=1e-9)
            assert record["other_s"] > -1e-6
            waited = sum(end - start for start, end in record["exposed"]) / 1e9
            assert waited == pytest.approx(record["comm_exposed_s"], abs=1e-6)


def bucket_s(steps: Steps, rank: int, index: int) -> float:
    buckets = [record["buckets"][index] for record in steps[rank]]
    return min((bucket["end_ns"] - bucket["start_ns"]) / 1e9 for bucket in buckets)
