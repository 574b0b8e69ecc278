"""Labs side by side: two of one user and one of another run jobs at once and end independently.

One story on one set of starts, in its order. The labs are called `a` (of both users) and `ab`.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.live.host import host_network
from tests.live.kills import COMMANDS, END_S, SLOW_END_S
from tests.live.lab import TestLab
from tests.live.scene import Scene, holders, marked, scene, wait_until
from tests.live.second_user import second_user

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

CLUSTER = """\
name: small
nodes: {nodes}
ranks_per_node: {ranks}
links: {{inter_node: {{rate: 400mbit}}}}
"""


@dataclass(frozen=True)
class Labs:
    """A user's two labs, and one of another user; the first and the last have the same name."""

    a: TestLab
    ab: TestLab
    others: TestLab

    def all(self) -> tuple[TestLab, ...]:
        return self.a, self.ab, self.others


def bring_up(it: TestLab, nodes: int, ranks: int) -> None:
    file = it.home / f"{nodes}x{ranks}.yaml"
    file.write_text(CLUSTER.format(nodes=nodes, ranks=ranks))
    done = it.command(
        "up", "--no-probe", "--backend=netns", f"--cluster={file}", f"--lab={it.name}"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labs]:
    before = host_network()
    home = tmp_path_factory.mktemp("labs")
    (home / "state").mkdir(mode=0o700)
    a = TestLab("a", home)
    with second_user("a") as others:
        it = Labs(a, replace(a, name="ab"), others)
        bring_up(it.a, 2, 1)
        bring_up(it.ab, 1, 2)
        bring_up(it.others, 2, 1)
        yield it
        for each in (it.a, it.ab):
            each.command("down", f"--lab={each.name}")
    assert host_network() == before


def status(it: TestLab, *words: str) -> dict[str, dict[str, Any]]:
    """What `status --json` tells, by lab."""
    done = it.command("status", "--json", *words)
    assert done.returncode == 0, done.stderr
    return {each["lab"]: each for each in json.loads(done.stdout)["labs"]}


def go_on(*scenes: Scene) -> None:
    before = {id(each): each.steps() for each in scenes}
    wait_until(
        lambda: all(each.steps() > before[id(each)] + 1 for each in scenes), SLOW_END_S, "going on"
    )


def test_jobs_on_all_of_them_at_once_end_one_by_one(labs: Labs) -> None:
    with ExitStack() as stack:
        running = [
            stack.enter_context(scene(it, *COMMANDS["run"], f"--lab={it.name}"))
            for it in labs.all()
        ]
        for each in running:
            each.reach("training")
        first, second, third = running
        see_all(labs, running)
        refuse_a_second(labs.a, first)

        down = labs.a.command("down", "--lab=a")
        assert down.returncode == 0, down.stderr
        assert first.end(END_S) == 1
        assert "the lab was taken down while the job ran" in first.screen()
        go_on(second, third)
        assert set(status(labs.ab)) == {"ab"}
        assert set(status(labs.others)) == {"a"}

        os.kill(second.process.pid, signal.SIGINT)
        assert second.end(END_S) == 130
        go_on(third)
        assert status(labs.ab)["ab"]["use"] is None

        os.kill(third.process.pid, signal.SIGTERM)
        assert third.end(END_S) == 130
        assert "stopped by SIGTERM at step" in third.screen()
        assert status(labs.others)["a"]["state"] == "up"


def see_all(labs: Labs, running: list[Scene]) -> None:
    """Each user sees all labs of its own, what runs on them, and no others."""
    first, second, third = running
    mine, others = status(labs.a), status(labs.others)
    assert (set(mine), set(others)) == ({"a", "ab"}, {"a"})
    for found, at_work in ((mine["a"], first), (mine["ab"], second), (others["a"], third)):
        folder = at_work.run()
        assert folder is not None
        assert found["state"] == "up"
        assert found["use"]["process"] == at_work.process.pid
        assert folder.name in found["use"]["what"]
    assert (mine["a"]["ranks"], len(mine["a"]["nodes"])) == (2, 2)
    assert (mine["ab"]["ranks"], len(mine["ab"]["nodes"])) == (2, 1)
    assert set(status(labs.a, "--lab=a")) == {"a"}
    spaces = {
        Path(f"/proc/{pid}/ns/net").readlink()
        for pid in (*holders(labs.a), *holders(labs.others))  # of both labs, and of the other's
    }
    assert len(spaces) == 3
    screen = labs.a.command("status").stdout
    assert all(f"(process {each.process.pid})" in screen for each in (first, second))
    assert str(third.process.pid) not in screen


def refuse_a_second(it: TestLab, at_work: Scene) -> None:
    """One job or measurement at a time; what is refused leaves no trace of its own."""
    folder, runs = at_work.run(), sorted(it.runs.glob("*"))
    assert folder is not None
    for words in (["run", "ring"], ["probe"]):
        done = it.command(*words, f"--lab={it.name}", "--json")
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["kind"]) == (1, "lab_busy")
        assert f"run {folder.name} (process {at_work.process.pid})" in error["message"]
    assert sorted(it.runs.glob("*")) == runs


def test_a_dead_lab_is_told_of_once_and_removed(labs: Labs) -> None:
    it = labs.ab
    (holder,) = holders(it)  # the other one is down by now
    os.kill(holder, signal.SIGKILL)
    wait_until(lambda: not holders(it), END_S)
    found = status(it)["ab"]
    assert (found["state"], found["note"]) == ("removed", "the process it lived in has ended")
    assert status(it) == {}
    done = it.command("status")
    assert (done.returncode, done.stdout) == (0, "No lab is up.    next    make cluster-up\n")
    gone = it.command("status", "--lab=ab")
    assert gone.returncode == 1
    assert "make cluster-up LAB=ab" in gone.stderr
    wait_until(lambda: not marked(it), END_S)


def test_a_lab_that_just_comes_up_is_seen(labs: Labs) -> None:
    it = replace(labs.a, name="new")
    with scene(it, "up", "--backend=netns", "--lab=new") as at_work:
        at_work.reach("probe")
        os.kill(at_work.process.pid, signal.SIGSTOP)  # so that it stays there
        found = status(it)["new"]
        assert (found["state"], found["worker"]["process"]) == ("coming_up", at_work.process.pid)
        screen = it.command("status").stdout
        os.kill(at_work.process.pid, signal.SIGCONT)
        assert "coming up" in screen
        assert f"process {at_work.process.pid}, for " in screen
        os.kill(at_work.process.pid, signal.SIGINT)
        assert at_work.end(END_S) == 130
    assert status(it) == {}
