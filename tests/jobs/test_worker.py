"""Whole ranks over loopback: two processes, gloo, a tiny model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.records import RankRecords
from tests.jobs.ranks import RunRanks, arguments, assert_finished, final_sums, records


@dataclass(frozen=True)
class Finished:
    """A run of two ranks on two nodes."""

    ranks: list[RankRecords]
    events: list[list[dict[str, Any]]]
    prediction: dict[str, Any]

    @property
    def gradient_bytes(self) -> int:
        assert self.ranks[0].header is not None
        return int(self.ranks[0].header["gradient_bytes"])


@pytest.fixture(scope="module")
def ring(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("ring") / "run"
    ranks = run_ranks(arguments(folder, "ring", "pace={forward_ms: 4, backward_ms: 8}"))
    assert_finished(ranks)
    prediction = json.loads((folder / "prediction.json").read_text())
    return Finished(records(folder), [rank["events"] for rank in ranks], prediction)


def test_a_run_leaves_complete_records(ring: Finished) -> None:
    for rank, written in enumerate(ring.ranks):
        assert written.header is not None
        assert written.end is not None
        assert (written.header["rank"], written.header["node_name"]) == (rank, f"node{rank}")
        assert [record.step for record in written.steps] == [0, 1, 2, 3]
        places = [(entry.block, entry.record.step) for entry in written.baseline]
        assert places == [(block, step) for block in (0, 1) for step in range(10)]
        # both are local rank 0 of their node
        assert all(record.nic_tx_bytes is not None for record in written.steps)
        assert len(written.header["plan"]["buckets"]) >= 2


def test_ranks_start_equal_and_end_equal_having_learnt_from_different_data(ring: Finished) -> None:
    first, second = ring.ranks
    assert first.header is not None and second.header is not None
    for key in ("initial_params_sha256", "plan", "plan_sha256", "data", "calibration"):
        assert first.header[key] == second.header[key]
    assert all(a.loss != b.loss for a, b in zip(first.steps, second.steps, strict=True))
    sums = {rank.end["params_sha256"] for rank in ring.ranks if rank.end}
    assert len(sums) == 1
    assert sums != {first.header["initial_params_sha256"]}


def test_computing_is_paced(ring: Finished) -> None:
    for written in ring.ranks:
        assert all(record.forward_s >= 0.004 for record in written.steps)
        assert all(record.backward_s >= 0.008 for record in written.steps)


def test_payload_bytes_are_those_of_the_ring(ring: Finished) -> None:
    expected = ring.gradient_bytes  # 2(N-1)/N of it, with two ranks
    for rank in ring.ranks:
        assert rank.end is not None
        for record in rank.steps:
            assert record.inter_node_bytes == pytest.approx(expected, rel=0.01)
            assert record.intra_node_bytes == 0
            assert sum(bucket.bytes for bucket in record.buckets) == expected
        assert all(entry.record.inter_node_bytes == 0 for entry in rank.baseline)
        assert rank.end["inter_node_bytes"] == pytest.approx(5 * expected, rel=0.01)
        assert rank.end["nic_tx_bytes"] > rank.end["inter_node_bytes"]


def test_the_launcher_hears_of_every_phase(ring: Finished) -> None:
    for rank, (*phases, finished) in zip(ring.ranks, ring.events, strict=True):
        assert [(event["phase"], event["done"], event["total"]) for event in phases] == [
            ("start", 1, 1),
            ("warm_up", 1, 1),
            *(("no_network", done, 20) for done in range(1, 11)),
            *(("train", done, 4) for done in range(1, 5)),
            *(("no_network", done, 20) for done in range(11, 21)),
            ("finish", 1, 1),
        ]
        trained = [event for event in phases if event["phase"] == "train"]
        assert [event["loss"] for event in trained] == [record.loss for record in rank.steps]
        assert [event["step_s"] for event in trained] == [record.step_s for record in rank.steps]
        assert rank.end is not None
        sha256 = rank.end["params_sha256"]
        told = {"kind": "finished", "job": 0, "params_sha256": sha256, "steps": 4}
        assert finished == told


def test_the_prediction_is_made_of_what_was_measured_before(ring: Finished) -> None:
    prediction = ring.prediction
    assert prediction["comm_seconds"] >= ring.gradient_bytes / 1e7  # at the probed rate
    assert prediction["bottleneck"]["direction"] in ("out", "in")
    blocks = [[entry.record for entry in rank.baseline if entry.block == 0] for rank in ring.ranks]
    slowest = sorted(max(a.step_s, b.step_s) for a, b in zip(*blocks, strict=True))
    compute_s = prediction["inputs"]["compute"]["step_s"]
    assert compute_s == pytest.approx(sum(slowest[4:6]) / 2)
    assert prediction["step_seconds"] > compute_s
    assert ring.ranks[0].header is not None
    assert prediction["inputs"]["calibration"] == ring.ranks[0].header["calibration"]


def test_inside_one_node_nothing_crosses_a_link(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert_finished(run_ranks(arguments(tmp_path / "run", "hier", node_of=(0, 0))))
    first, second = records(tmp_path / "run")
    assert all(record.inter_node_bytes == 0 for record in first.steps)
    assert all((record.intra_node_bytes or 0) > 0 for record in first.steps)
    assert all(record.nic_tx_bytes is not None for record in first.steps)
    assert all(record.nic_tx_bytes is None for record in second.steps)  # local rank 1


def test_equal_jobs_end_with_equal_bytes_whatever_the_baseline(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    assert_finished(run_ranks(arguments(tmp_path / "short", "hier")))
    assert_finished(run_ranks(arguments(tmp_path / "long", "hier", "baseline_steps=41")))
    assert len(set(final_sums(tmp_path / "short") + final_sums(tmp_path / "long"))) == 1
    assert len(records(tmp_path / "long")[0].baseline) == 41
    assert_finished(run_ranks(arguments(tmp_path / "other", "hier", "train.seed=1")))
    assert final_sums(tmp_path / "other") != final_sums(tmp_path / "short")


@pytest.mark.parametrize("algorithm", ["native", "noop"])
def test_algorithms_without_a_schedule(run_ranks: RunRanks, tmp_path: Path, algorithm: str) -> None:
    assert_finished(run_ranks(arguments(tmp_path / "run", algorithm)))
    equal = len(set(final_sums(tmp_path / "run"))) == 1
    assert equal == (algorithm == "native")
    sent = {record.inter_node_bytes for rank in records(tmp_path / "run") for record in rank.steps}
    assert sent == ({None} if algorithm == "native" else {0})


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer", "bucket"])
def test_an_injected_delay_shows_in_its_place(
    run_ranks: RunRanks, tmp_path: Path, phase: str
) -> None:
    inject = f"inject={{phase: {phase}, ms: 15, rank: 1}}"
    sets = (inject, "train.steps=2", "pace={forward_ms: 5, backward_ms: 5}")
    assert_finished(run_ranks(arguments(tmp_path / "run", "hier", *sets)))
    first, second = records(tmp_path / "run")
    for waiting, slow in zip(first.steps, second.steps, strict=True):
        if phase == "bucket":
            bucket = slow.buckets[0]
            assert bucket.end_ns - bucket.start_ns >= 15e6
        else:
            floor_s = 0.005 if phase in ("forward", "backward") else 0.0
            assert getattr(slow, f"{phase}_s") >= 0.015 + floor_s
        if phase in ("forward", "backward"):  # a delay before the gradients are there
            last_ready_ns = max(bucket.ready_ns for bucket in waiting.buckets)
            slow_ready_ns = min(bucket.ready_ns for bucket in slow.buckets)
            assert all(start >= last_ready_ns for start, _ in waiting.exposed)
            assert max(bucket.end_ns for bucket in waiting.buckets) > slow_ready_ns


def test_gradients_are_clipped_and_accumulated_alike_on_all_ranks(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    sets = ("train.accumulate=3", "train.clip_norm=0.5", "train.optimizer=sgd")
    assert_finished(run_ranks(arguments(tmp_path / "run", "hier", *sets)))
    assert len(set(final_sums(tmp_path / "run"))) == 1
    first, _ = records(tmp_path / "run")
    assert first.header is not None
    assert {record.samples for record in first.steps} == {6}
    assert all(  # reduced once a step, not once a micro-step
        record.inter_node_bytes == pytest.approx(first.header["gradient_bytes"], rel=0.01)
        for record in first.steps
    )


def test_one_rank_alone(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert_finished(run_ranks(arguments(tmp_path / "run", "hier", node_of=(0,))))
    (rank,) = records(tmp_path / "run", 1)
    assert all(record.inter_node_bytes == 0 for record in rank.steps)
