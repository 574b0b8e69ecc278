"""Whatever is killed, and whenever: what was asked ends, says why, and leaves nothing.

The cells of `tests.live.kills` that can share a lab and a start, in their order; all others are
run by hand: `python -m tests.live.kills`.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.live.host import host_network
from tests.live.kills import (
    COMMANDS,
    END_S,
    HUP,
    INT,
    KILL,
    SLEPT_S,
    SLOW_END_S,
    STOP,
    TERM,
    Cell,
    Outcome,
    check,
    suffer,
)
from tests.live.lab import TestLab
from tests.live.scene import scene, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

COMING_UP = (
    Cell("up", "up", "command", HUP),
    Cell("up", "limit", "command", TERM),
    Cell("up", "probe", "command", KILL),
    Cell("up", "probe", "group", INT),
    Cell("up", "probe", "make", KILL),
    Cell("up", "probe", "holder", TERM),
    Cell("up", "probe", "probe end", INT),
)
ON_A_LAB = (
    Cell("probe", "probe", "command", TERM),
    Cell("probe", "probe", "probe client", KILL),
    Cell("run", "start", "command", HUP),
    Cell("run", "start", "guard", TERM),
    Cell("run", "start", "agent", KILL),
    Cell("run", "start", "make", KILL),
    Cell("run", "training", "rank 0", KILL),
    Cell("run", "training", "command", KILL),
)
AT_THE_END = (
    Cell("run", "summary", "command", KILL),
    Cell("run", "training", "holder", KILL),
)


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    home = tmp_path_factory.mktemp("kills")
    (home / "state").mkdir(mode=0o700)
    made = TestLab("kills", home)
    yield made
    made.command("down", "--lab", made.name)


@pytest.fixture(scope="module")
def network(it: TestLab) -> dict[str, object]:
    """This machine's own, before there was a lab."""
    del it
    return host_network()


@pytest.fixture
def up(it: TestLab) -> TestLab:
    done = it.command("up", "--no-probe", "--backend=netns", "--cluster=2x2", f"--lab={it.name}")
    assert done.returncode == 0, done.stdout + done.stderr
    return it


@pytest.mark.parametrize("cell", COMING_UP, ids=str)
def test_a_lab_that_comes_up(it: TestLab, network: dict[str, object], cell: Cell) -> None:
    suffer(it, cell)
    assert host_network() == network


@pytest.mark.parametrize("cell", ON_A_LAB, ids=str)
def test_a_command_on_a_lab(up: TestLab, cell: Cell) -> None:
    """The next one finds the lab as it was."""
    suffer(up, cell)
    for node in ("node0", "node1"):
        assert not up.in_node(node, "ss", "-Htln")  # no port listens


def test_what_a_run_survives(up: TestLab, network: dict[str, object]) -> None:
    """It goes on, and ends with what it had when it is told to."""
    cell = Cell("run", "training", "command", INT)
    with scene(up, *COMMANDS["run"], f"--lab={up.name}") as at_work:
        at_work.reach(cell.moment)
        for victim, number in (("exporter", KILL), ("agent client", KILL), ("command", STOP)):
            for pid in at_work.victims(victim):
                os.kill(pid, number)
        time.sleep(SLEPT_S)
        at_work.process.send_signal(signal.SIGCONT)
        before = at_work.steps()
        wait_until(lambda: at_work.steps() > before + 1, SLOW_END_S, "going on")
        assert host_network() == network
        at_work.process.send_signal(INT)
        code = at_work.end(END_S)
    words = r"stopped by you at step \d+; \d+ steps kept in runs/latest; the lab is still up"
    check(up, at_work, cell, Outcome((130,), words, True), code)


@pytest.mark.parametrize("cell", AT_THE_END, ids=str)
def test_a_run_that_comes_to_its_end_and_a_lab_that_does(up: TestLab, cell: Cell) -> None:
    """The first trains all that it was asked to, so the lab was as good as new; the next makes
    another, for the holder took everything with it."""
    suffer(up, cell)


def test_taking_down_is_as_good_as_done_once_it_has_begun(up: TestLab) -> None:
    suffer(up, Cell("down", "down", "command", KILL))
    again = up.command("down", f"--lab={up.name}")
    assert again.returncode == 1
    assert f'lab "{up.name}" is not up' in again.stderr
