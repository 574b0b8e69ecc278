"""Two sizes on real labs: files, bytes and ratios from the records, and nothing is left."""

import csv
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import jsonschema
import pytest

from cluster.holding import start_ticks
from tests.live.host import eventually
from tests.live.lab import TestLab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

SCHEMAS = Path(__file__).parents[1] / "jobs" / "schemas"
JOBS = ("ring", "hier")
ROUNDS, STEPS = 2, 3
COUNTED = ROUNDS * STEPS
SETS = ("model.layers=2", "model.width=64", "pace={forward_ms: 15, backward_ms: 25}")


@dataclass(frozen=True)
class Scaled:
    """What the command printed, and where it ran."""

    it: TestLab
    document: dict[str, Any]

    def row(self, job: str, num_ranks: int) -> dict[str, Any]:
        (rows,) = (each["sizes"] for each in self.document["jobs"] if each["job"] == job)
        (row,) = (each for each in rows if each["world_size"] == num_ranks)
        return dict(row)

    def summary(self, row: dict[str, Any]) -> dict[str, Any]:
        text = (self.it.runs / row["run_id"] / "summary.json").read_text()
        return dict(json.loads(text))

    def step_s(self, row: dict[str, Any]) -> list[float]:
        """From the records of all ranks: a step is as long as its slowest rank took."""
        ranks = self.it.steps(row["run_id"])
        assert [len(steps) for steps in ranks] == [COUNTED] * row["world_size"]
        return [max(record["step_s"] for record in step) for step in zip(*ranks, strict=True)]

    def samples_per_s(self, row: dict[str, Any]) -> float:
        ranks = self.it.steps(row["run_id"])
        samples = sum(record["samples"] for steps in ranks for record in steps)
        return float(samples / sum(self.step_s(row)))

    def told(self, alone: dict[str, Any], ratio: float) -> Any:
        """What is told of a ratio: nothing where the reference varied, as on a busy machine."""
        steps = sorted(self.step_s(alone))
        varies = quantiles(steps, n=10, method="inclusive")[8] > 1.3 * median(steps)
        assert (alone["withheld"] is not None) == varies
        return None if varies else pytest.approx(ratio, rel=1e-9)


def words(*more: str) -> list[str]:
    sets = [word for setting in SETS for word in ("--set", setting)]
    turns = ["--rounds", str(ROUNDS), "--steps", str(STEPS)]
    return ["scale", *JOBS, "--nodes=2", "--rate=400mbit", "--backend=netns", *turns, *sets, *more]


def place(home: Path) -> TestLab:
    """Where scale makes labs of its own."""
    (home / "state").mkdir(mode=0o700)
    return TestLab("none", home)


def labs_of(it: TestLab) -> list[Path]:
    return list((it.home / "state" / "ddplab").glob("*"))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaled]:
    it = place(tmp_path_factory.mktemp("scale"))
    done = it.command(*words("--json"))
    assert done.returncode == 0, done.stdout + done.stderr
    yield Scaled(it, json.loads(done.stdout))


def test_files_hold_what_was_printed(scaled: Scaled) -> None:
    jsonschema.validate(scaled.document, json.loads((SCHEMAS / "scale.json").read_text()))
    assert scaled.document["complete"]
    assert scaled.document["sizes"] == [[1, 1], [2, 2]]
    (file,) = scaled.it.runs.glob("*/scale.json")
    assert json.loads(file.read_text()) == scaled.document
    with file.with_suffix(".csv").open() as lines:
        table = {row["run_id"]: row for row in csv.DictReader(lines)}
    for job in JOBS:
        row = scaled.row(job, 4)
        assert float(table[row["run_id"]]["step_seconds"]) == row["step_seconds"]


@pytest.mark.parametrize("job", JOBS)
def test_ratios_are_those_of_the_records(scaled: Scaled, job: str) -> None:
    alone, four = scaled.row(job, 1), scaled.row(job, 4)
    ideal = scaled.samples_per_s(alone)
    for row in (alone, four):
        ranks, summary = row["world_size"], scaled.summary(row)
        ratio = scaled.samples_per_s(row) / (ranks * ideal)
        assert row["scaling_efficiency_ratio"] == scaled.told(alone, ratio)
        assert summary["scaling_efficiency_ratio"] == row["scaling_efficiency_ratio"]
        assert summary["scaling_baseline"] == row["scaling_baseline"]
        assert summary["status"] == "ok" and summary["ranks_agree"]
        predicted = row["samples_per_step"] / summary["predicted"]["step_seconds"]
        assert row["predicted_scaling_efficiency_ratio"] == scaled.told(
            alone, predicted / (ranks * ideal)
        )
    assert alone["lost_seconds"] is None
    if (lost := four["lost_seconds"]) is not None:
        parts = sum(lost[part] for part in ("network", "slower_rank", "contention", "other"))
        assert parts == pytest.approx(four["step_seconds"] - alone["step_seconds"], abs=1e-9)
        assert four["scaling_baseline"]["run_id"] == alone["run_id"]


@pytest.mark.parametrize(("job", "share"), [("ring", 1.5), ("hier", 1.0)])
def test_bytes_are_those_of_the_size(scaled: Scaled, job: str, share: float) -> None:
    alone, four = scaled.summary(scaled.row(job, 1)), scaled.summary(scaled.row(job, 4))
    assert four["gradient_bytes"] == alone["gradient_bytes"]
    assert four["inter_node_bytes_per_step"] == pytest.approx(
        share * four["gradient_bytes"], rel=0.01
    )
    assert alone["inter_node_bytes_per_step"] == 0
    assert alone["comm_seconds"]["straggler_wait"] == 0
    assert alone["overlap_ratio"] is None
    assert alone["busbw_bytes_per_second"] is None


def test_no_lab_is_left(scaled: Scaled) -> None:
    assert labs_of(scaled.it) == []


def test_a_scale_that_is_killed_takes_its_lab_along(tmp_path: Path) -> None:
    it = place(tmp_path)
    process = it.start(*words())
    try:
        assert eventually(lambda: any((lab / "state.json").exists() for lab in labs_of(it)), 30)
        (lab,) = labs_of(it)
        holder = json.loads((lab / "state.json").read_text())["nodes"]["holder"]
        assert start_ticks(holder["pid"]) == holder["pid_ticks"]
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert eventually(lambda: start_ticks(holder["pid"]) != holder["pid_ticks"], 5)
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_a_scale_that_is_stopped_takes_its_lab_down(tmp_path: Path) -> None:
    it = place(tmp_path)
    process = it.start(*words())
    try:
        assert eventually(lambda: any((lab / "state.json").exists() for lab in labs_of(it)), 30)
        time.sleep(0.5)  # at any moment
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped by you at size 1x1; its lab was taken down" in err
    assert labs_of(it) == []
