"""What a person does to a lab of containers by hand: said in words, and nothing of it is left."""

import os
import shutil
from collections.abc import Iterator

import pytest

from cluster.compose.engine import PROJECT_LABEL, Engine
from tests.live.lab import TestLab

pytestmark = pytest.mark.docker
SETS = ("--set", "pace=null", "--set", "model.layers=2", "--steps", "2")


@pytest.fixture
def it(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[TestLab]:
    """A lab of two nodes that is up, not measured."""
    home = tmp_path_factory.mktemp("faults")
    home.chmod(0o755)  # ranks do not run as root
    (home / "state").mkdir(mode=0o700)
    lab = TestLab(f"x{os.getpid()}", home)
    try:
        done = lab.command("up", "--backend=compose", "--no-probe", f"--lab={lab.name}")
        assert done.returncode == 0, done.stderr
        yield lab
    finally:
        lab.command("down", f"--lab={lab.name}")
        engine.remove(f"ddplab-{lab.name}")


def told(it: TestLab, *words: str) -> str:
    """What a command says as it refuses."""
    done = it.command(*words, f"--lab={it.name}")
    assert done.returncode == 1, done.stdout
    return " ".join(done.stderr.split())


def test_a_paused_node_is_named_and_a_lab_goes_on_after_it(it: TestLab, engine: Engine) -> None:
    name = f"ddplab-{it.name}-node-2"
    engine.api.pause(name)
    assert "node1 is paused" in told(it, "link", "--node=node1", "--rate=50mbit")
    assert f"docker unpause {name}" in told(it, "run", "hier", *SETS)
    engine.api.unpause(name)
    done = it.command("link", "--node=node1", "--rate=50mbit", "--no-probe", f"--lab={it.name}")
    assert done.returncode == 0, done.stderr


def test_a_node_that_was_taken_off_its_network_is_no_node_any_more(
    it: TestLab, engine: Engine
) -> None:
    project = f"ddplab-{it.name}"
    engine.api.disconnect_container_from_network(f"{project}-node-2", f"{project}_fabric")
    assert "the container of node1 was taken off its network" in told(it, "run", "hier", *SETS)
    wanted = {"label": [f"{PROJECT_LABEL}={project}"]}
    assert engine.api.containers(all=True, filters=wanted) == []
    assert engine.networks(project) == []


def test_runs_that_were_removed_under_a_lab_are_told_before_ranks_start(it: TestLab) -> None:
    shutil.rmtree(it.runs)
    assert f"{it.runs} was removed or moved while the lab was up" in told(it, "run", "hier", *SETS)


def test_a_limit_that_was_removed_by_hand_fails_the_run(it: TestLab, engine: Engine) -> None:
    name = f"ddplab-{it.name}-node-2"
    words = ["tc", "qdisc", "del", "dev", "ifb0", "root"]
    order = engine.api.exec_create(name, words, user="0:0")["Id"]
    assert engine.api.exec_start(order) == b""
    said = told(it, "run", "hier", *SETS)
    assert "not limited as the lab says" in said
    assert "node1 in: asked 200mbit; read back unlimited" in said
