"""Whole jobs on a shaped lab: what people run first, and what they are told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.live.lab import SMALL, TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

SHORT = (*SMALL, "train.steps=4")
SCHEMAS = Path(__file__).parents[1] / "jobs" / "schemas"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    with lab(tmp_path_factory.mktemp("job"), "2x2", "--rate", "400mbit") as it:
        yield it


@pytest.fixture(scope="module")
def hier(measured: TestLab) -> dict[str, Any]:
    """The job that people run first, as it is in the catalog."""
    return measured.run("hier")


def test_hier_trains_and_leaves_a_whole_run_folder(measured: TestLab, hier: dict[str, Any]) -> None:
    summary = hier
    jsonschema.validate(summary, json.loads((SCHEMAS / "run.json").read_text()))
    assert summary["status"] == "ok"
    assert summary["ranks_agree"]
    assert summary["loss_last"] < summary["loss_first"] - 0.5
    assert summary["link"]["proof"] == "probed"
    assert summary["inter_node_bytes_bound"] == summary["gradient_bytes"]  # 2(M-1)/M is 1 here
    sent = summary["inter_node_bytes_per_step"]
    assert sent == pytest.approx(summary["inter_node_bytes_bound"], rel=0.01)
    folder = measured.runs / summary["run_id"]
    assert (measured.runs / "latest").resolve() == folder.resolve()
    expected = {"run.json", "prediction.json", "summary.json", "steps.csv"}
    expected |= {f"rank{rank}.{kind}" for rank in range(4) for kind in ("jsonl", "log")}
    assert {path.name for path in folder.iterdir()} == expected
    ends = [rank[-1] for rank in measured.records(summary["run_id"])]
    assert {end["params_sha256"] for end in ends} == {summary["params_sha256"]}
    first_measured = min(rank[0]["t_ns"] for rank in measured.steps(summary["run_id"]))
    header = measured.records(summary["run_id"])[0][0]
    written_ns = (folder / "prediction.json").stat().st_mtime_ns
    assert written_ns - header["wall_ns"] < first_measured - header["monotonic_ns"]


def test_noop_ends_with_different_parameters_and_says_so(measured: TestLab) -> None:
    sets = [word for setting in SHORT for word in ("--set", setting)]
    shown = measured.command("run", "noop", "--lab", measured.name, *sets)
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "network nothing was sent" in words
    assert "parameters differ between ranks, as this job expects" in words
    summary = json.loads((measured.runs / "latest" / "summary.json").read_text())
    assert summary["status"] == "ok"
    assert summary["ranks_agree"] is False
    ends = [rank[-1] for rank in measured.records(summary["run_id"])]
    assert len({end["params_sha256"] for end in ends}) == 4


def test_the_same_job_twice_ends_with_the_same_bytes(measured: TestLab) -> None:
    short = measured.run("hier", *SHORT)
    again = measured.run("hierarchical", *SHORT)  # a job answers to its algorithm's name too
    assert again["job"] == short["job"] == "hier"
    assert again["plan_sha256"] == short["plan_sha256"]
    assert again["params_sha256"] == short["params_sha256"]
    headers = [rank[0] for rank in measured.records(again["run_id"])]
    shared = {header["rank"]: header["shares_memory_with"] for header in headers}
    assert shared == {0: [1], 1: [0], 2: [3], 3: [2]}  # inside nodes, though all is one kernel


def test_probe_json_keeps_its_contract(measured: TestLab) -> None:
    done = measured.command("probe", "--lab", measured.name, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, json.loads((SCHEMAS / "probe.json").read_text()))
    assert report["ok"]
    modes = sorted({link["mode"] for link in report["links"]})
    assert modes == ["both_ways", "intra_node", "one_way"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "heir"], "hier"),
        (["run", "hier", "--rate", "50mbit"], "400mbit"),
        (["run", "hier", "--set", "train.step=3"], '"steps"'),
        (["run", "hier", "--set", "train.lr=fast"], "train.lr"),
        (["run", "hier", "--set", "ddp.algorithm=rnig"], "ring"),
        (["run", "hier", "--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (["up", "--cluster", "3x"], "2x2"),
        (["up", "--rate", "1gbps"], "1gbit"),
        (["up", "--rate", "0mbit"], "0mbit"),
        (["up", "--cluster", "2x4"], "2x2"),
    ],
)
def test_bad_input_is_told_with_its_fix(measured: TestLab, words: list[str], told: str) -> None:
    runs_before = sorted(path.name for path in measured.runs.iterdir())
    done = measured.command(*words, "--lab", measured.name)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert sorted(path.name for path in measured.runs.iterdir()) == runs_before
    as_json = measured.command(*words, "--lab", measured.name, "--json")
    error = json.loads(as_json.stdout)
    jsonschema.validate(error, json.loads((SCHEMAS / "error.json").read_text()))


@pytest.mark.parametrize("content", [b"", b"short"])
def test_data_too_short_to_train_on(measured: TestLab, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "data.txt"
    file.write_bytes(content)
    done = measured.command("run", "hier", "--lab", measured.name, "--data", str(file))
    assert done.returncode == 1
    assert "data.txt" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_run_without_a_lab_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    done = TestLab("nobody", tmp_path).command("run", "hier", "--lab", "nobody")
    assert done.returncode == 1
    assert "make cluster-up LAB=nobody" in done.stderr
