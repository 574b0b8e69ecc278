"""A lab of containers through the command that people type: what it says, limits, and refuses."""

import json
import os
from collections.abc import Iterator

import pytest

from cluster.compose.engine import Engine
from cluster.compose.project import Project
from tests.live.lab import SMALL, TestLab

pytestmark = pytest.mark.docker
LIMITED = """
name: limited
nodes: 2
ranks_per_node: 1
limits: {cpus: 0.5, memory: 1500MB}
links: {inter_node: {rate: 1gbit}}
"""
SETS = [word for each in (*SMALL, "train.steps=2") for word in ("--set", each)]


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[TestLab]:
    """A lab whose nodes are limited, brought up by auto; its screen lies in `screen`."""
    home = tmp_path_factory.mktemp("front")
    home.chmod(0o755)  # ranks do not run as root
    (home / "state").mkdir(mode=0o700)
    (home / "limited.yaml").write_text(LIMITED)
    lab = TestLab(f"f{os.getpid()}", home)
    try:
        done = lab.command("up", "--no-probe", "--cluster=limited.yaml", f"--lab={lab.name}")
        assert done.returncode == 0, done.stderr
        (home / "screen").write_text(done.stdout)
        yield lab
    finally:
        lab.command("down", f"--lab={lab.name}")
        engine.remove(f"ddplab-{lab.name}")


def test_the_first_line_says_what_auto_took_and_why(it: TestLab) -> None:
    words = " ".join((it.home / "screen").read_text().split())
    assert "2 nodes x 1 rank (0.5 cpus and 1500MB a node), in containers on this machine" in words
    assert "(BACKEND=auto took compose: Docker " in words


def test_every_node_is_limited_as_asked(it: TestLab, engine: Engine) -> None:
    nodes = Project(engine, f"ddplab-{it.name}", it.home).nodes()
    keys = ("NanoCpus", "Memory", "MemorySwap")  # the last counts memory too: there is no swap
    held = [tuple(node["HostConfig"][key] for key in keys) for node in nodes]
    assert held == [(500_000_000, 1_500_000_000, 1_500_000_000)] * 2


def test_another_subnet_or_other_limits_are_another_lab(it: TestLab) -> None:
    (it.home / "free.yaml").write_text(LIMITED.replace("limits: {cpus: 0.5, memory: 1500MB}", ""))
    for words, asked in (
        (["--cluster=free.yaml"], "asked: limited: 2 nodes x 1 ranks, 1gbit"),
        (["--cluster=limited.yaml", "--subnet=10.99.0.0/24"], "asked: subnet 10.99.0.0/24"),
    ):
        done = it.command("up", "--no-probe", f"--lab={it.name}", *words)
        assert done.returncode == 1
        assert asked in " ".join(done.stderr.split())


def test_what_nodes_do_not_see_is_refused_before_ranks_start(
    it: TestLab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "text"
    outside.write_bytes(bytes(10_000))
    done = it.command("run", "hier", f"--lab={it.name}", f"--data={outside}", *SETS, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"]) == (1, "host_error")
    assert f"{outside} cannot be seen inside the containers" in error["message"]
    assert not list(it.runs.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="ranks run as who started them, who may read it")
def test_what_is_closed_to_ranks_is_refused_before_they_start(it: TestLab) -> None:
    text = it.home / "text"
    text.write_bytes(bytes(10_000))
    text.chmod(0o600)
    done = it.command("run", "hier", f"--lab={it.name}", f"--data={text}", *SETS)
    assert done.returncode == 1
    assert f"{text} is closed to ranks" in " ".join(done.stderr.split())
    assert not list(it.runs.iterdir())


def test_a_run_says_what_its_lab_was(it: TestLab) -> None:
    text = it.home / "open"
    text.write_bytes(bytes(range(256)) * 40)
    done = it.command("run", "hier", f"--lab={it.name}", f"--data={text}", *SETS, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert (summary["backend"], summary["underlay"]) == ("compose", "compose")
    run = json.loads((it.runs / summary["run_id"] / "run.json").read_text())
    assert run["lab"]["backend"] == "compose"
    assert run["lab"]["cluster"]["limits"] == {"cpus": 0.5, "memory": "1500MB"}
    assert run["threads"]["per_rank"] == 1
    assert "Ranks outnumber cores: 2 ranks on 1 core." in done.stderr


def test_a_cpu_limit_that_this_machine_cannot_give_is_refused_by_name(it: TestLab) -> None:
    (it.home / "many.yaml").write_text(LIMITED.replace("cpus: 0.5", "cpus: 1000"))
    done = it.command("up", "--no-probe", "--cluster=many.yaml", f"--lab={it.name}x")
    assert done.returncode == 1
    assert "Range of CPUs is from 0.01" in " ".join(done.stderr.split())
    assert not (it.home / "state/ddplab" / f"{it.name}x").exists()
