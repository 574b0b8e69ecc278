"""summary.json and steps.csv of hand-made records, against figures computed by hand."""

import csv
import io
from dataclasses import replace

import pytest

from jobs.errors import RunFailed
from jobs.figures import run_figures
from jobs.records import RankRecords
from jobs.summary import steps_csv, summarize
from tests.jobs.command import valid
from tests.jobs.samples import (
    NODES,
    alike,
    bucket,
    figures_of,
    ranks_of,
    record,
    run_json,
    stock_record,
    stock_run,
)


def test_the_whole_summary() -> None:
    fast, slow = record(0, nic=1_100_000, loss=4.0), record(1, step_ms=140, nic=1_300_000, loss=3.0)
    quiet = [replace(each, nic_tx_bytes=None, nic_rx_bytes=None) for each in (fast, slow)]
    ranks = ranks_of([[fast, slow], quiet, [fast, slow], quiet])
    prediction = {"step_seconds": 0.108, "comm_seconds": 0.030}
    summary = summarize(run_json(), ranks, prediction, None)
    valid(summary, "run")
    assert summary["status"] == "ok"
    assert summary["step_seconds"] == {
        "mean": pytest.approx(0.120),
        "median": pytest.approx(0.120),
        "p10": pytest.approx(0.104),
        "p90": pytest.approx(0.136),
        "n": 2,
    }
    # the second step's 40 ms more are in no measured phase
    assert summary["phase_seconds"] == {
        "data": 0,
        "forward": pytest.approx(0.030),
        "backward": pytest.approx(0.050),
        "comm_exposed": pytest.approx(0.015),
        "optimizer": pytest.approx(0.005),
        "other": pytest.approx(0.020),
    }
    assert sum(summary["phase_seconds"].values()) == pytest.approx(summary["step_seconds"]["mean"])
    assert summary["comm_seconds"] == {
        "work": pytest.approx(0.035),
        "busy": pytest.approx(0.035),
        "exposed": pytest.approx(0.015),
        "straggler_wait": 0,
    }
    assert summary["overlap_ratio"] == pytest.approx(1 - 15 / 35)
    assert summary["baseline_step_seconds"]["n"] == 20
    assert summary["communication_efficiency_ratio"] == pytest.approx(70 / 120)
    assert summary["samples_per_second"] == pytest.approx(4 * 8 * 2 / 0.240)
    assert summary["gradient_bytes"] == 2_000_000
    assert summary["inter_node_bytes_per_step"] == 1_000_000  # two ranks of 500,000 on a node
    assert summary["inter_node_bytes_bound"] == 2_000_000  # 2 (M-1)/M x S, M = 2
    assert summary["nic_tx_bytes_per_step"] == 1_200_000
    assert summary["algbw_bytes_per_second"] == pytest.approx(2_000_000 / 0.035)
    assert summary["busbw_bytes_per_second"] == pytest.approx(2_000_000 / 0.035 * 1.5)
    assert summary["predicted"] == {
        "step_seconds": 0.108,
        "comm_seconds": 0.030,
        "error_ratio": pytest.approx(-0.1),
    }
    assert (summary["loss_first"], summary["loss_last"]) == (4.0, 3.0)
    assert (summary["params_sha256"], summary["ranks_agree"]) == ("ab" * 32, True)
    assert summary["ring_order"] is None
    assert summary["compute"] == "paced"


def test_a_run_that_never_stepped_has_nulls_and_its_error() -> None:
    ranks = [RankRecords() for _ in range(4)]
    summary = summarize(run_json(probe=None), ranks, None, RunFailed("rank 1 was killed", "r", "f"))
    valid(summary, "run")
    valid(summary, "error")
    assert summary["status"] == "failed"
    assert summary["error"] == {"kind": "run_failed", "message": "rank 1 was killed; r", "fix": "f"}
    assert summary["step_seconds"] == {
        "mean": None,
        "median": None,
        "p10": None,
        "p90": None,
        "n": 0,
    }
    assert summary["overlap_ratio"] is None
    assert summary["communication_efficiency_ratio"] is None
    assert summary["bottleneck"] is None
    assert summary["ranks_agree"] is None
    assert summary["link"]["proof"] == "none"


def test_efficiency_is_withheld_when_the_baseline_is_noisy() -> None:
    noisy = [70.0] * 15 + [100.0] * 5  # p90 / median = 1.43
    figures = run_figures(ranks_of([[record()]] * 4, baseline_ms=noisy), NODES)
    assert figures.efficiency is None
    assert "p90 / median is 1.429" in (figures.efficiency_withheld or "")
    calm = run_figures(ranks_of([[record()]] * 4, baseline_ms=[70.0] * 15 + [80.0] * 5), NODES)
    assert calm.efficiency == pytest.approx(0.7)
    assert calm.efficiency_withheld is None


def test_without_a_baseline_there_is_no_efficiency() -> None:
    figures = run_figures(ranks_of([[record()]] * 4, baseline_ms=()), NODES)
    assert figures.efficiency is None
    assert figures.efficiency_withheld is None


def test_nothing_sent_means_no_rates() -> None:
    silent = replace(record(inter=0), intra_node_bytes=0)
    ranks = ranks_of([[silent]] * 4, sums=("aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32))
    summary = summarize(run_json(), ranks, None, None)
    assert summary["overlap_ratio"] is None
    assert summary["algbw_bytes_per_second"] is None
    assert summary["busbw_bytes_per_second"] is None
    assert summary["inter_node_bytes_per_step"] == 0
    assert summary["ranks_agree"] is False
    assert summary["params_sha256"] is None


def test_what_is_reduced_four_times_a_step_is_counted_four_times() -> None:
    run = run_json()
    job = {**run["job"], "ddp": {**run["job"]["ddp"], "no_sync": False}}
    job["train"] = {**job["train"], "accumulate": 4}
    ranks = ranks_of([[record()]] * 4)
    once, each = summarize(run, ranks, None, None), summarize(run_json(job=job), ranks, None, None)
    assert each["algbw_bytes_per_second"] == pytest.approx(4 * 2_000_000 / 0.035)
    assert each["busbw_bytes_per_second"] == pytest.approx(4 * once["busbw_bytes_per_second"])
    assert each["inter_node_bytes_bound"] == once["inter_node_bytes_bound"]
    job["ddp"] = {**job["ddp"], "no_sync": True}
    accumulated = summarize(run_json(job=job), ranks, None, None)
    assert accumulated["algbw_bytes_per_second"] == once["algbw_bytes_per_second"]


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([["a", "b", "c"], ["d", "e", "f"]], {"epochs": 3, "repeats": False}),
        ([["a", "a", "a"], ["d", "d", "d"]], {"epochs": 3, "repeats": True}),
        ([["a", "a", "b"], ["d", "d", "d"]], {"epochs": 3, "repeats": False}),
        ([["a"], ["d"]], {"epochs": 1, "repeats": None}),
        ([["a", "b"], None], {"epochs": None, "repeats": None}),
    ],
)
def test_the_order_of_the_data(
    orders: list[list[str] | None], expected: dict[str, int | bool | None]
) -> None:
    ranks = ranks_of([[record()]] * 4)
    for number, rank in enumerate(ranks):
        told = orders[number % 2]
        rank.end = None if told is None else {**(rank.end or {}), "data_orders": told}
    summary = summarize(run_json(), ranks, None, None)
    valid(summary, "run")
    assert summary["data_order"] == expected


def test_one_rank_has_no_bus_bandwidth() -> None:
    ranks = ranks_of([[record(inter=0)]], sums=("ab" * 32,))
    one = run_json(nnodes=1, nproc_per_node=1, world_size=1, node_of=[0])
    summary = summarize(one, ranks, None, None)
    assert summary["algbw_bytes_per_second"] is not None
    assert summary["busbw_bytes_per_second"] is None
    assert summary["inter_node_bytes_bound"] == 0


def test_bytes_a_backend_does_not_tell_are_null() -> None:
    untold = replace(record(inter=None, nic=3_000_000), intra_node_bytes=None)
    summary = summarize(run_json(), ranks_of([[untold]] * 4), None, None)
    assert summary["inter_node_bytes_per_step"] is None
    assert summary["nic_tx_bytes_per_step"] == 3_000_000
    assert summary["algbw_bytes_per_second"] is not None


def test_a_wait_longer_than_the_communication_is_no_negative_overlap() -> None:
    figures = alike(exposed=((60, 100),), buckets=[bucket(0, 80, 80, 100)])
    assert figures.overlap_ratio == 0


def test_a_loss_that_one_rank_lacks_is_null() -> None:
    figures = figures_of(record(loss=None), record(), record(), record())
    assert figures.steps[0].loss is None


def test_steps_csv_has_a_line_per_step() -> None:
    figures = run_figures(ranks_of([[record(0), record(1, step_ms=120)]] * 4), NODES)
    rows = list(csv.DictReader(io.StringIO(steps_csv(figures))))
    assert [row["step"] for row in rows] == ["0", "1"]
    assert float(rows[1]["step_s"]) == pytest.approx(0.120)
    assert float(rows[1]["other_s"]) == pytest.approx(0.020)
    assert rows[0]["inter_node_bytes"] == "1000000"
    assert rows[0]["nic_tx_bytes"] == ""


def test_what_torchs_own_class_does_not_tell_is_null() -> None:
    ranks = ranks_of([[stock_record(0), stock_record(1)]] * 4)
    prediction = {"step_seconds": None, "comm_seconds": None, "reason": "not told"}
    summary = summarize(stock_run(), ranks, prediction, None)
    valid(summary, "run")
    assert (summary["wrapper"], summary["algorithm"]) == ("torch", "native")
    untold = ("plan_sha256", "overlap_ratio", "inter_node_bytes_per_step")
    rates = ("algbw_bytes_per_second", "busbw_bytes_per_second")
    assert [summary[key] for key in (*untold, *rates)] == [None] * 5
    assert summary["comm_seconds"] == {
        "work": None,
        "busy": None,
        "exposed": pytest.approx(0.015),
        "straggler_wait": None,
    }
    assert set(summary["predicted"].values()) == {None}
    assert summary["nic_tx_bytes_per_step"] == 3_000_000
    assert summary["gradient_bytes"] == 2_000_000
    assert summary["communication_efficiency_ratio"] == pytest.approx(0.7)
    assert (summary["params_sha256"], summary["ranks_agree"]) == ("ab" * 32, True)
    # 3 MB a step at 20 MB/s is more than the 100 ms of a step
    assert summary["bottleneck"] == (
        "communication, or a slower rank. It adds 15 ms to every step; the link between nodes "
        "carries data 100 % of the time. Which of the two torch's own class does not tell."
    )
    rows = list(csv.DictReader(io.StringIO(steps_csv(run_figures(ranks, NODES)))))
    assert {rows[0][key] for key in ("comm_work_s", "comm_busy_s", "straggler_wait_s")} == {""}


def test_a_run_of_before_wrappers_had_names_is_ours() -> None:
    assert summarize(run_json(), ranks_of([[record()]] * 4), None, None)["wrapper"] == "ddplab"
