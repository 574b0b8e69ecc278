"""The lessons as jobs on a lab: each summary shows what its lesson says.

All that come to their end take turns in one set of ranks, with small models and free computing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.spec import load_job
from tests.live.lab import TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

GPT = ("model.layers=1", "model.width=32")
JOBS = {
    "accumulate": GPT,
    "accumulate-every": GPT,
    "barrier-only": GPT,
    "star": GPT,
    "per-parameter": ("model.layers=5",),
    "resnet-bn": ("model.layers=1", "model.width=8"),
    "unused-flagged": ("model.width=16",),
    "forgot-set-epoch": ("model.width=16",),
}
FREE = ("pace=null", "train.warmup_steps=2")
REMINDED = ("forgot-set-epoch", ("name=reminded", "data.set_epoch=true", "model.width=16"))
SCHEMA = Path(__file__).parents[1] / "jobs" / "schemas" / "run.json"


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    """A fast link, so that bytes come cheap."""
    with lab(tmp_path_factory.mktemp("lessons"), "2x2", "--rate", "1gbit", "--no-probe") as made:
        yield made


@pytest.fixture(scope="module")
def lessons(it: TestLab) -> dict[str, dict[str, Any]]:
    """The summary of each job, and of one that does not forget set_epoch."""
    files = []
    for number, (job, sets) in enumerate((*JOBS.items(), REMINDED)):
        document = load_job(job, (*FREE, *sets)).model_dump(mode="json")
        files.append(it.home / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(document))
    turns = ("--rounds", "1", "--steps", "11", "--allow-different", "--json")
    done = it.command("compare", *map(str, files), "--lab", it.name, *turns)
    assert done.returncode == 0, done.stdout + done.stderr
    summaries = {each["job"]: each for each in json.loads(done.stdout)["jobs"]}
    assert list(summaries) == [*JOBS, "reminded"]
    return summaries


@pytest.mark.parametrize("job", [*JOBS, "reminded"])
def test_every_lesson_runs_to_its_end(lessons: dict[str, dict[str, Any]], job: str) -> None:
    summary = lessons[job]
    jsonschema.validate(summary, json.loads(SCHEMA.read_text()))
    assert (summary["status"], summary["steps"]) == ("ok", 11)
    assert summary["ranks_agree"] is (job != "barrier-only")
    assert summary["loss_last"] < summary["loss_first"]


def test_forgetting_no_sync_sends_four_times_the_bytes(lessons: dict[str, dict[str, Any]]) -> None:
    once, each = lessons["accumulate"], lessons["accumulate-every"]
    assert once["inter_node_bytes_per_step"] == pytest.approx(once["gradient_bytes"], rel=0.01)
    assert each["inter_node_bytes_per_step"] == 4 * once["inter_node_bytes_per_step"]
    assert each["loss_last"] == pytest.approx(once["loss_last"], rel=1e-3)  # the same training
    assert each["inter_node_bytes_bound"] == once["inter_node_bytes_bound"]


def test_one_reduction_for_each_parameter_sends_no_more(
    it: TestLab, lessons: dict[str, dict[str, Any]]
) -> None:
    summary = lessons["per-parameter"]
    steps = it.steps(summary["run_id"])[0]
    assert {len(step["buckets"]) for step in steps} == {1 + 5 * 4 + 2 + 2}
    assert summary["inter_node_bytes_per_step"] == pytest.approx(
        summary["gradient_bytes"], rel=0.03
    )


def test_all_of_a_star_goes_through_one_node(
    it: TestLab, lessons: dict[str, dict[str, Any]]
) -> None:
    summary = lessons["star"]
    size = summary["gradient_bytes"]
    for step in zip(*it.steps(summary["run_id"]), strict=True):
        sent = [rank["inter_node_bytes"] for rank in step]
        assert sent == [pytest.approx(each, rel=0.01) for each in (2 * size, 0, size, size)]
    assert summary["inter_node_bytes_per_step"] == pytest.approx(2 * size, rel=0.01)
    received = [0, 0]
    for header, *lines in it.records(summary["run_id"]):
        steps = (line for line in lines if line["kind"] == "step")
        received[header["node"]] += sum(step.get("nic_rx_bytes", 0) for step in steps)
    assert received[0] >= 2 * size * summary["steps"]


def test_ranks_at_a_barrier_send_nothing_and_drift_apart(
    it: TestLab, lessons: dict[str, dict[str, Any]]
) -> None:
    summary = lessons["barrier-only"]
    assert summary["inter_node_bytes_per_step"] == 0
    assert summary["params_sha256"] is None
    ends = [rank[-1]["params_sha256"] for rank in it.records(summary["run_id"])]
    assert len(set(ends)) == 4
    for step in zip(*it.steps(summary["run_id"]), strict=True):
        meetings = [rank["buckets"][-1] for rank in step]
        last_ns = max(meeting["start_ns"] for meeting in meetings)
        assert all(meeting["end_ns"] >= last_ns for meeting in meetings)


def test_a_sampler_that_is_not_told_repeats_its_order(lessons: dict[str, dict[str, Any]]) -> None:
    # 374 windows; with 32 a step 14 steps are more than one pass
    assert lessons["forgot-set-epoch"]["data_order"] == {"epochs": 2, "repeats": True}
    assert lessons["reminded"]["data_order"] == {"epochs": 2, "repeats": False}
    for job in ("accumulate", "resnet-bn"):
        assert lessons[job]["data_order"] == {"epochs": 1, "repeats": None}
