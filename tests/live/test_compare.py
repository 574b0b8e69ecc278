"""Jobs that take turns on a real lab: bytes of each, one set of processes, one cause for all."""

import json
import os
import re
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from jobs.compare.model import PricedRun
from tests.live.lab import SMALL, TestLab, lab
from tests.live.scene import marked, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

JOBS = ("ring", "hier", "native", "torch-ddp", "torch-ddp-hier")
UNTOLD = ("native", "torch-ddp")  # their bytes, but to the NIC
ROUNDS, TURN_STEPS = 3, 4
SETS = tuple(word for setting in SMALL for word in ("--set", setting))
HEADERS = 1.06  # what the kernel counts beyond payload: Ethernet, IP, TCP, acknowledgements
START_S, END_S = 60, 30


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    with lab(tmp_path_factory.mktemp("compare"), "2x2", "--rate", "400mbit") as made:
        yield made


@pytest.fixture(scope="module")
def compared(it: TestLab) -> dict[str, Any]:
    """The document of a comparison of all jobs."""
    turns = ("--rounds", str(ROUNDS), "--steps", str(TURN_STEPS))
    done = it.command("compare", *JOBS, "--lab", it.name, *turns, *SETS, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def lines_of(it: TestLab, compared: dict[str, Any]) -> dict[str, list[list[dict[str, Any]]]]:
    """Every line of every rank, by job."""
    return {each["job"]: it.records(each["run_id"]) for each in compared["jobs"]}


def test_each_job_sent_its_own_bytes(it: TestLab, compared: dict[str, Any]) -> None:
    # of the gradients, by each of two nodes
    share = {"ring": 1.5, "hier": 1.0, "native": 1.5, "torch-ddp": 1.5, "torch-ddp-hier": 1.0}
    for job, ranks in lines_of(it, compared).items():
        expected = share[job] * ranks[0][0]["gradient_bytes"]
        num_steps = 3 + ROUNDS * (1 + TURN_STEPS)
        totals = [0, 0]
        for header, *_, end in ranks:
            totals[header["node"]] += end["nic_tx_bytes"] or 0
            sent = [line["inter_node_bytes"] for line in ranks[0] if line["kind"] == "step"]
            assert (None in sent) == (job in UNTOLD)
        # another job's bytes, or those of the steps without network, would be far beyond it
        for total in totals:
            assert expected * num_steps <= total <= HEADERS * expected * num_steps, (job, totals)
        if job not in UNTOLD:
            summary = next(each for each in compared["jobs"] if each["job"] == job)
            payload = summary["inter_node_bytes_per_step"]
            assert payload == pytest.approx(expected, rel=0.01)


def test_all_jobs_ran_in_the_same_processes(it: TestLab, compared: dict[str, Any]) -> None:
    pids = {
        job: [(rank[0]["rank"], rank[0]["node"], rank[0]["pid"]) for rank in ranks]
        for job, ranks in lines_of(it, compared).items()
    }
    assert all(pids[job] == pids["ring"] for job in JOBS)
    assert len({pid for _, _, pid in pids["ring"]}) == 4


def test_the_order_of_turns_changes_from_round_to_round(
    it: TestLab, compared: dict[str, Any]
) -> None:
    steps = sorted(
        (line["t_ns"], job)
        for job, ranks in lines_of(it, compared).items()
        for line in ranks[0]
        if line["kind"] == "step"
    )
    order = [job for job, turn in groupby(job for _, job in steps) for _ in _turns(len(list(turn)))]
    size = len(JOBS)
    rounds = [tuple(order[start : start + size]) for start in range(0, len(order), size)]
    assert rounds == [JOBS[number:] + JOBS[:number] for number in range(ROUNDS)]


def _turns(num_steps: int) -> range:
    """A job that ends one round and begins the next has two turns in a row."""
    assert num_steps % TURN_STEPS == 0
    return range(num_steps // TURN_STEPS)


def test_the_same_model_was_trained_in_other_ways(compared: dict[str, Any]) -> None:
    assert compared["faults"] == []
    assert compared["losses"]["step"] == ROUNDS * TURN_STEPS
    assert set(compared["losses"]["last"]) == set(JOBS)
    assert compared["losses"]["apart"] <= 1e-4
    assert all(each["ranks_agree"] for each in compared["jobs"])


def test_each_tells_what_it_can_of_how_it_reduced(it: TestLab, compared: dict[str, Any]) -> None:
    summaries = {each["job"]: each for each in compared["jobs"]}
    wrappers = {job: summary["wrapper"] for job, summary in summaries.items()}
    assert wrappers == {job: "torch" if "torch" in job else "ddplab" for job in JOBS}
    for job, summary in summaries.items():
        run = json.loads((it.runs / summary["run_id"] / "run.json").read_text())
        assert run["plan_sha256"] == summary["plan_sha256"]
        told = job != "torch-ddp"
        times = [summary["comm_seconds"][key] for key in ("work", "busy", "straggler_wait")]
        figures = [summary[key] for key in ("plan_sha256", "overlap_ratio")]
        assert [value is not None for value in (*times, *figures)] == [told] * 5, job
        assert summary["comm_seconds"]["exposed"] > 0
    plans = [summaries[job]["plan_sha256"] for job in ("ring", "hier", "native")]
    assert len(set(plans)) == 3
    ours, hooked = (summaries[job]["algorithm"] for job in ("hier", "torch-ddp-hier"))
    assert ours == hooked == "hierarchical"


def test_each_was_predicted_and_bounded(it: TestLab, compared: dict[str, Any]) -> None:
    assert compared["base"] == "native"
    for row in compared["rows"]:
        assert row["step_seconds"]["n"] == ROUNDS * TURN_STEPS
        prediction = it.runs / row["run_id"] / "prediction.json"
        run = json.loads((it.runs / row["run_id"] / "run.json").read_text())
        priced = PricedRun.of(run, json.loads(prediction.read_text()))
        assert (priced is None) == (row["job"] == "torch-ddp")
        if priced is None:
            continue
        assert priced.least_exposed_s() is not None  # 0 where computing is slow: on a busy machine
        assert priced.exposed_s_at(10**9) is not None
        assert (priced.exposed_s_at(10**6) or 0.0) > 0  # so slow a link holds any of them up
        header, *lines = it.records(row["run_id"])[0]
        first = next(line for line in lines if line["kind"] == "step")
        began_ns = header["wall_ns"] + first["t_ns"] - header["monotonic_ns"]
        assert prediction.stat().st_mtime_ns < began_ns
    assert compared["no_network"]["no network"]["n"] == 20 * len(JOBS)


def test_runs_of_a_comparison_are_ordinary_runs(it: TestLab, compared: dict[str, Any]) -> None:
    listed = json.loads(it.command("runs", "--json").stdout)["runs"]
    ids = {each["run_id"] for each in compared["jobs"]}
    assert ids <= {each["run_id"] for each in listed if each["state"] == "ok"}
    again = it.command("compare", "--runs", compared["folder"], "--base", "ring", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["took_turns"] is True


def test_a_rank_that_is_killed_in_the_middle_ends_all_jobs(it: TestLab) -> None:
    before = set(it.runs.glob("*-compare-*"))
    turns = ("--rounds", "2", "--steps", "5000")
    with it.start("compare", "ring", "hier", "--lab", it.name, *turns, *SETS) as process:
        try:
            wait_until(lambda: _num_steps(_new(it, before, "ring"), 3) >= 3, START_S, "trained")
            os.kill(_pid_outside(it, _new(it, before, "ring"), 3), signal.SIGKILL)
            out, err = process.communicate(timeout=END_S)
        finally:
            process.kill()
    assert process.returncode == 1
    words = r"rank 3 \(node1\) was killed by SIGKILL, after train step \d+ of ring"
    assert re.search(words, re.sub(r"\s+", " ", err)), err
    assert "times as fast" not in out
    for job, least in (("ring", 3), ("hier", 0)):
        folder = _new(it, before, job)
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["status"] == "failed"
        assert re.search(words, summary["error"]["message"])
        assert summary["steps"] >= least
        assert _num_steps(folder, 0) >= least
        assert (folder / "prediction.json").exists()
    wait_until(lambda: not _job_processes(it), END_S, "all of the job gone")
    assert it.command("status", "--lab", it.name).returncode == 0


def _new(it: TestLab, before: set[Path], job: str) -> Path:
    """The run folder of that job in the newest comparison; where it will be, if there is none."""
    found = set(it.runs.glob(f"*-compare-{job}-*")) - before
    return found.pop() if found else it.runs / "to come"


def _num_steps(folder: Path, rank: int) -> int:
    file = folder / f"rank{rank}.jsonl"
    return file.read_text().count('"kind":"step"') if file.exists() else 0


def _job_processes(it: TestLab) -> list[int]:
    return [pid for pid, command in marked(it).items() if "cluster.agent" in command]


def _pid_outside(it: TestLab, folder: Path, rank: int) -> int:
    """A rank as this machine numbers it; its own record tells its number inside the lab."""
    inside = json.loads((folder / f"rank{rank}.jsonl").read_text().splitlines()[0])["pid"]
    (pid,) = [
        pid
        for pid in _job_processes(it)
        if f"\t{inside}\n" in Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2]
    ]
    return pid
