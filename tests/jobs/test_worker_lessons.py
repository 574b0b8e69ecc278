"""Whole ranks over loopback that do what lessons are about: what each leaves in its records."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from jobs.records import RankRecords
from tests.jobs.ranks import RunRanks, arguments, assert_finished, failures, final_sums, records

SMALL = {
    "accumulate": ("model.layers=1", "model.width=16", "model.heads=2", "model.context=16"),
    "mini-mlp": ("model.width=16", "model.context=16"),
    "experts": ("model.experts=3", "model.width=16", "model.context=16"),
}


def small(folder: Path, job: str, kind: str, *sets: str) -> list[dict[str, Any]]:
    return arguments(folder, job, *SMALL[kind], *sets)


def sent(ranks: list[RankRecords]) -> set[int | None]:
    return {record.inter_node_bytes for rank in ranks for record in rank.steps}


def test_without_no_sync_each_micro_step_is_reduced(run_ranks: RunRanks, tmp_path: Path) -> None:
    for job in ("accumulate", "accumulate-every"):
        assert_finished(run_ranks(small(tmp_path / job, job, "accumulate")))
        assert len(set(final_sums(tmp_path / job))) == 1
    once, each = records(tmp_path / "accumulate"), records(tmp_path / "accumulate-every")
    (bytes_once,), (bytes_each,) = sent(once), sent(each)
    assert bytes_once and bytes_each == 4 * bytes_once
    for few, many in zip(once[0].steps, each[0].steps, strict=True):
        assert len(many.buckets) == 4 * len(few.buckets)
        assert many.samples == few.samples == 4 * 2
        assert many.loss == pytest.approx(few.loss, rel=1e-3)  # the same training


def test_a_barrier_keeps_ranks_together_and_replicas_apart(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    inject = "inject={phase: optimizer, ms: 100, rank: 1}"
    asked = arguments(tmp_path / "run", "barrier-only", "model.layers=1", "model.width=32", inject)
    assert_finished(run_ranks(asked))
    first, second = records(tmp_path / "run")
    assert len(set(final_sums(tmp_path / "run"))) == 2
    assert sent([first, second]) == {0}
    for waiting, slow in zip(first.steps[1:], second.steps[1:], strict=True):
        one, other = waiting.buckets[-1], slow.buckets[-1]
        assert one.bytes == other.bytes == 0
        # the earlier waits until the later has come
        assert min(one.end_ns, other.end_ns) >= max(one.start_ns, other.start_ns)
    assert median(step.comm_exposed_s for step in first.steps[1:]) > 0.05
    for rank in (first, second):
        alone = [bucket for entry in rank.baseline for bucket in entry.record.buckets]
        assert alone and all(bucket.bytes > 0 for bucket in alone)


def test_unused_experts_are_named_with_the_remedy(run_ranks: RunRanks, tmp_path: Path) -> None:
    messages = failures(run_ranks(small(tmp_path / "run", "unused", "experts")))
    assert len(set(messages)) == 1
    assert "no gradient reached 'routed.experts." in messages[0]
    assert "find_unused_parameters=True" in messages[0]
    assert all(rank.end is None for rank in records(tmp_path / "run"))


def test_the_deadlock_of_the_lesson_ends(run_ranks: RunRanks, tmp_path: Path) -> None:
    sets = ("ddp.lesson_deadlock=true", "ddp.timeout_s=3")
    messages = failures(run_ranks(small(tmp_path / "run", "unused", "experts", *sets)))
    assert len(set(messages)) == 1
    assert "deadlock, as in the lesson: waited 1.5 s for the gradient of" in messages[0]
    assert "'routed.experts." in messages[0]


@pytest.mark.parametrize("flag", ["find_unused_parameters", "static_graph"])
def test_what_finds_unused_parameters_reaches_the_wrapper(
    run_ranks: RunRanks, tmp_path: Path, flag: str
) -> None:
    """A static graph holds for steps that are alike: here all bytes are the same."""
    (tmp_path / "text").write_bytes(bytes(5000))
    sets = (f"data.path={tmp_path}/text", f"ddp.{flag}=true")
    assert_finished(run_ranks(small(tmp_path / "run", "unused", "experts", *sets)))
    assert len(set(final_sums(tmp_path / "run"))) == 1


def test_a_static_graph_that_changes_is_told(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = small(tmp_path / "run", "unused", "experts", "ddp.static_graph=true")
    (message, other) = failures(run_ranks(asked))
    assert message == other
    assert "static_graph=True; leave it out where the graph changes" in message


@pytest.mark.parametrize("set_epoch", [True, False])
def test_the_orders_of_all_passes_are_recorded(
    run_ranks: RunRanks, tmp_path: Path, set_epoch: bool
) -> None:
    (tmp_path / "text").write_bytes(bytes(range(256)) * 4)
    told = f"data.set_epoch={str(set_epoch).lower()}"
    sets = (f"data.path={tmp_path}/text", "data.limit_bytes=193", told)
    # 12 windows of 16 bytes, 4 a step: 3 steps a pass, and 5 steps; those of the baseline are none
    asked = small(tmp_path / "run", "forgot-set-epoch", "mini-mlp", *sets)
    assert_finished(run_ranks(asked))
    first, second = (rank.end for rank in records(tmp_path / "run"))
    assert first and second
    for end in (first, second):
        assert len(end["data_orders"]) == 2
        assert len(set(end["data_orders"])) == (2 if set_epoch else 1)
    assert first["data_orders"][0] != second["data_orders"][0]  # each rank has a share of its own
    header = records(tmp_path / "run")[0].header
    assert header and header["data"]["bytes"] == 193
