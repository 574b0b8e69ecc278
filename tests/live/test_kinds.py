"""Kinds of models on a shaped lab: what crosses the links, and what is told of a broken one.

What people run first, byte-gpt, is test_job's.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import load_job
from tests.live.lab import TestLab, lab
from tests.live.turns import Lines, run_in_turn

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

EXAMPLE = Path(__file__).parents[2] / "docs" / "own_model.yaml"
SHORT = ("train.steps=4", "train.warmup_steps=2")
UNPACED = (*SHORT, "pace=null")
JOBS = {
    "mini-mlp": load_job("mini-mlp", UNPACED),
    "deep-mlp": load_job("deep", (*UNPACED, "model.layers=8", "model.width=64")),
    "paced": load_job("7b-thousandth", (*SHORT, "model.layers=4", "model.layer_bytes=200000")),
    "import": load_job(str(EXAMPLE), (*UNPACED, "model.settings.width=32")),
}
EVERY_KIND = pytest.mark.parametrize("kind", JOBS)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    """A fast link, so that bytes come cheap."""
    with lab(tmp_path_factory.mktemp("kinds"), "2x2", "--rate", "1gbit", "--no-probe") as it:
        yield it


@pytest.fixture(scope="module")
def trained(fast: TestLab) -> dict[str, Lines]:
    """All kinds, one after the other in one set of ranks."""
    return run_in_turn(fast, fast.home / "turns", JOBS)


def steps_of(rank: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in rank if line["kind"] == "step"]


@EVERY_KIND
def test_a_node_sends_the_least_there_is_to_send(trained: dict[str, Lines], kind: str) -> None:
    """At 2 nodes hierarchical sends each node's gradients once."""
    header = trained[kind][0][0]
    gradient_bytes = header["gradient_bytes"]
    for number in range(4):
        sent = [0, 0]
        for rank in trained[kind]:
            record = steps_of(rank)[number]
            sent[rank[0]["node"]] += record["inter_node_bytes"]
            assert sum(bucket["bytes"] for bucket in record["buckets"]) == gradient_bytes
        assert max(sent) == pytest.approx(gradient_bytes, rel=0.01)


@EVERY_KIND
def test_ranks_start_alike_learn_from_different_data_and_end_alike(
    trained: dict[str, Lines], kind: str
) -> None:
    ranks = trained[kind]
    initial = {rank[0]["initial_params_sha256"] for rank in ranks}
    final = {rank[-1]["params_sha256"] for rank in ranks}
    assert len(initial) == len(final) == 1
    assert initial != final
    for number in range(4):
        assert len({steps_of(rank)[number]["loss"] for rank in ranks}) == 4


def test_paced_layers_take_their_time_with_more_ranks_than_cores(trained: dict[str, Lines]) -> None:
    for rank in trained["paced"]:
        assert rank[0]["gradient_bytes"] == 4 * 200_000
        assert all(record["forward_s"] >= 0.02 for record in steps_of(rank))
        assert all(record["backward_s"] >= 0.0425 for record in steps_of(rank))


def test_the_file_of_ones_own_model_is_recorded(trained: dict[str, Lines]) -> None:
    file = EXAMPLE.with_suffix(".py")
    for rank in trained["import"]:
        assert rank[0]["model_file"] == {
            "path": str(file),
            "function": "build",
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        assert len(rank[0]["data"]["sha256"]) == 64


def test_a_broken_model_is_told_by_its_line_and_leaves_the_lab_up(
    fast: TestLab, tmp_path: Path
) -> None:
    (tmp_path / "my.py").write_text("def build(context):\n    return context.layers\n")
    job = tmp_path / "job.yaml"
    job.write_text("name: mine\nmodel: {import: 'my.py:build'}\n")
    done = fast.command("run", str(job), "--lab", fast.name)
    shown = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert f"{tmp_path}/my.py:2: AttributeError: 'int' object has no attribute 'layers'" in shown
    assert "Traceback" not in done.stdout + done.stderr
    folder = fast.runs / "latest"
    assert "Traceback" in (folder / "rank0.log").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("failed", 0)
    assert "my.py:2: AttributeError" in summary["error"]["message"]
    assert fast.command("status", "--lab", fast.name).returncode == 0
