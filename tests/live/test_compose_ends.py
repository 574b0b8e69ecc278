"""An `up` of containers that is killed, at any moment: nothing of it is left."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.compose.engine import Engine
from tests.live.containers import containers, named_lab, parts, project
from tests.live.host import eventually
from tests.live.lab import TestLab

pytestmark = pytest.mark.docker


@pytest.fixture
def it(tmp_path: Path, engine: Engine) -> Iterator[TestLab]:
    with named_lab(tmp_path, engine) as lab:
        yield lab


@pytest.mark.parametrize("after_s", [0.4, 0.8, 1.2, 1.6])
def test_nothing_is_left_of_an_up_that_was_killed(
    it: TestLab, engine: Engine, after_s: float
) -> None:
    process = it.start("up", "--backend", "compose", "--lab", it.name, "--no-probe")
    time.sleep(after_s)
    process.kill()
    process.communicate()
    assert eventually(lambda: not parts(engine, project(it)), 20) or process.returncode == 0
    time.sleep(1)  # what a killed Compose had still asked for
    if process.returncode != 0:
        assert parts(engine, project(it)) == []


def test_what_nobody_could_remove_is_removed_by_the_next_command(
    it: TestLab, engine: Engine
) -> None:
    process = it.start("up", "--backend", "compose", "--lab", it.name)
    assert eventually(lambda: len(containers(engine, it)) == 2, 60)
    (tie,) = ties(project(it))
    os.kill(tie, signal.SIGKILL)
    process.kill()
    process.communicate()
    assert parts(engine, project(it)) != []
    done = it.command("up", "--backend", "compose", "--lab", it.name, "--no-probe")
    assert done.returncode == 0, done.stderr
    assert len(containers(engine, it)) == 2
    done = it.command("down", "--lab", it.name)
    assert done.returncode == 0, done.stderr
    assert parts(engine, project(it)) == []


def ties(name: str) -> list[int]:
    """The processes that would remove a project."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"cluster.compose.tie" in words and name.encode() in words:
                found.append(int(entry.name))
    return found
