"""A lab has one user at a time: what a second is told, and how taking it down ends a run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.lab import TestLab, lab
from tests.live.test_kill import END_S, marked, of_the_job, training, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[TestLab]:
    with lab(tmp_path, "2x2", "--rate", "1gbit", "--no-probe") as it:
        yield it


def test_others_are_refused_during_a_run_and_taking_down_ends_it(two_nodes: TestLab) -> None:
    with training(two_nodes, "--json") as process:
        runs = [path.name for path in two_nodes.runs.iterdir()]
        (run_id,) = [name for name in runs if name != "latest"]
        for words in (["run", "ring"], ["probe"]):
            done = two_nodes.command(*words, "--lab", two_nodes.name, "--json")
            assert done.returncode == 1
            error = json.loads(done.stdout)["error"]
            assert error["kind"] == "lab_busy"
            assert f"run {run_id} (process {process.pid})" in error["message"]
        assert [path.name for path in two_nodes.runs.iterdir()] == runs  # nothing of the second
        assert process.poll() is None
        down = two_nodes.command("down", "--lab", two_nodes.name)
        assert down.returncode == 0, down.stderr
        assert run_id in down.stdout
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 1, err
        summary = json.loads(out)
        assert summary["error"]["message"] == "the lab was taken down while the job ran"
        assert summary["steps"] >= 3
        wait_until(lambda: not marked(two_nodes), END_S)


def test_a_launcher_killed_while_its_agents_import_leaves_nothing(two_nodes: TestLab) -> None:
    with two_nodes.start("run", "hier", "--lab", two_nodes.name) as process:
        wait_until(lambda: len(of_the_job(two_nodes)) >= 2, END_S)
        process.kill()
        process.communicate()
        wait_until(lambda: not of_the_job(two_nodes), END_S)
