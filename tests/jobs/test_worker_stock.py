"""Whole ranks over loopback that train with torch's own class, beside ours and one process."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp.plan import ReductionPlan
from jobs.argument import RankArgument
from tests.jobs.ranks import RunRanks, arguments, assert_finished, failures, final_sums, records
from tests.jobs.test_worker_kinds import trained_by_one_process

JOBS = ("torch-ddp", "torch-ddp-hier")
PACE = "pace={forward_ms: 4, backward_ms: 8}"


def prediction_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "prediction.json").read_text())
    return document


def test_torchs_class_trains_as_native_does_and_tells_what_it_can(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    runs = {job: tmp_path / job for job in ("native", "torch-ddp")}
    for job, folder in runs.items():
        assert_finished(run_ranks(arguments(folder, job, PACE)))
    stock, ours = records(runs["torch-ddp"]), records(runs["native"])
    assert final_sums(runs["torch-ddp"]) == final_sums(runs["native"])  # two numbers, either way
    for rank, other in zip(stock, ours, strict=True):
        assert rank.header is not None and other.header is not None and rank.end is not None
        for key in ("gradient_bytes", "initial_params_sha256"):
            assert rank.header[key] == other.header[key]
        untold = ("plan", "plan_sha256", "calibration")
        assert [rank.header[key] for key in untold] == [None] * 3
        assert [record.loss for record in rank.steps] == [record.loss for record in other.steps]
        for record in rank.steps:
            sent = (record.intra_node_bytes, record.inter_node_bytes)
            assert (record.buckets, *sent) == (None, None, None)
            assert record.nic_tx_bytes is not None
            end_ns = record.t_ns + record.step_s * 1e9
            assert all(record.t_ns < start <= end < end_ns for start, end in record.exposed)
            assert record.comm_exposed_s > 0
            assert record.backward_s > 0.008
        baseline = [entry.record for entry in rank.baseline]
        assert {record.inter_node_bytes for record in baseline} == {0}
        assert {(record.buckets, record.exposed) for record in baseline} == {(None, ())}
        assert rank.end["inter_node_bytes"] is None
    prediction = prediction_of(runs["torch-ddp"])
    assert (prediction["step_seconds"], prediction["inputs"]["calibration"]) == (None, None)
    assert prediction["reason"] == "torch's own class does not tell how it reduces"
    assert prediction["inputs"]["compute"]["step_s"] > 0.012


def test_our_hook_in_torchs_class_is_recorded_and_predicted_as_ours(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    asked = arguments(folder, "torch-ddp-hier", "train.warmup_steps=2", PACE)
    assert_finished(run_ranks(asked))
    written = records(folder)
    header = written[0].header
    assert header is not None
    plan = ReductionPlan.from_json(header["plan"])
    assert header["plan_sha256"] == plan.sha256
    assert len(plan.buckets) > 1
    for each in asked:
        each |= {"master_port": 1, "listen_fd": None}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks: another number adds up in another order
    told = [RankArgument.model_validate(each) for each in asked]
    expected = trained_by_one_process(told, plan)
    torch.set_num_threads(threads)
    assert final_sums(folder) == [expected, expected]
    gradient_bytes = header["gradient_bytes"]
    for rank in written:
        for record in (*rank.steps, *(entry.record for entry in rank.baseline)):
            assert sum(bucket.bytes for bucket in record.buckets or ()) == gradient_bytes
        assert {record.inter_node_bytes for record in rank.steps} == {gradient_bytes}
        assert {entry.record.inter_node_bytes for entry in rank.baseline} == {0}
    prediction = prediction_of(folder)
    assert prediction["comm_seconds"] >= gradient_bytes / 1e7  # at the probed rate
    assert prediction["inputs"]["compute"]["bucket_bytes"] == [
        4 * bucket.numel for bucket in plan.buckets
    ]
    ready_s = prediction["inputs"]["compute"]["ready_s"]
    assert ready_s[0] < ready_s[-1] <= prediction["inputs"]["compute"]["backward_s"]


def test_before_torch_has_made_its_buckets_nothing_is_predicted(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    assert_finished(run_ranks(arguments(tmp_path / "run", "torch-ddp-hier")))
    first, _ = records(tmp_path / "run")
    assert first.header is not None
    assert first.header["plan"] is None
    prediction = prediction_of(tmp_path / "run")
    assert prediction["step_seconds"] is None
    assert "in two steps, and train.warmup_steps is fewer" in prediction["reason"]


@pytest.mark.parametrize("job", JOBS)
def test_gradients_are_accumulated_without_sending(
    run_ranks: RunRanks, tmp_path: Path, job: str
) -> None:
    sets = ("train.accumulate=3", "train.clip_norm=0.5", "train.optimizer=sgd")
    assert_finished(run_ranks(arguments(tmp_path / "run", job, *sets)))
    assert_finished(run_ranks(arguments(tmp_path / "ours", "native", *sets)))
    assert final_sums(tmp_path / "run") == final_sums(tmp_path / "ours")
    first, _ = records(tmp_path / "run")
    assert first.header is not None
    sent = {record.inter_node_bytes for record in first.steps}
    assert sent == {None if job == "torch-ddp" else first.header["gradient_bytes"]}


@pytest.mark.parametrize("job", JOBS)
def test_one_rank_alone_waits_for_nobody(run_ranks: RunRanks, tmp_path: Path, job: str) -> None:
    assert_finished(run_ranks(arguments(tmp_path / "run", job, node_of=(0,))))
    (rank,) = records(tmp_path / "run", 1)
    for record in rank.steps:
        assert (record.inter_node_bytes, record.comm_exposed_s, record.exposed) == (0, 0, ())


@pytest.mark.parametrize("job", JOBS)
def test_a_rank_that_fails_tells_the_others_why(
    run_ranks: RunRanks, tmp_path: Path, job: str
) -> None:
    asked = arguments(tmp_path / "run", job)
    asked[1]["test_file_limit_bytes"] = 9000
    messages = failures(run_ranks(asked))
    assert messages[0] == messages[1]
    assert messages[0].startswith("rank 1: ")
    assert "rank1.jsonl: File too large; every step is written down" in messages[0]
