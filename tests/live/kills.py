"""The kill matrix: which process of a lab is ended, when and how, and what then must hold.

After every cell the same is true: nothing runs that should not, the screen has named the cause in
words, what was recorded is there, and the next command works. The tests run the cells that can
share a start; `python -m tests.live.kills [words of a cell]` runs all of them, one by one.
"""

import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from tests.live.host import host_network
from tests.live.lab import SMALL, TestLab
from tests.live.scene import Scene, checkout, marked, named, scene, unwilling_client, wait_until

KILL, TERM, INT, HUP = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP
STOP, CONT = signal.SIGSTOP, signal.SIGCONT
ENDING = (KILL, TERM, INT, HUP)
END_S = 10
"""How long the end may take on a busy machine, after the signal."""
SLOW_END_S = 60
"""Where a program that was stopped is waited for."""
SLEPT_S = 3
"""How long a command is stopped: longer than it calls a wait."""
ENDLESS = ("train.steps=100000", "ddp.timeout_s=5", "pace={forward_ms: 20, backward_ms: 40}")
"""Paced, so that jobs that run until they are ended leave the machine to others."""
COMMANDS = {
    "up": ("up", "--cluster=2x2", "--backend=netns"),
    "probe": ("probe",),
    "down": ("down",),
    "link": ("link", "--node=all", "--rate=100mbit"),
    "run": ("run", "hier", *(f"--set={each}" for each in (*SMALL, *ENDLESS))),
    "compare": ("compare", "ring", "hier", *(f"--set={each}" for each in SMALL), "--rounds=99"),
    "scale": (
        *("scale", "ring", "--nodes=2", "--backend=netns", "--rounds=99"),
        *(f"--set={each}" for each in SMALL),
    ),
    "summary": ("run", "hier", *(f"--set={each}" for each in (*SMALL, "train.steps=2"))),
}
MADE = {
    "up": ("cluster-up", "CLUSTER=2x2", "BACKEND=netns"),
    "run": ("run", "JOB=hier", "SET=" + " ".join((*SMALL, *ENDLESS))),
}


STAYS = ("probe", "run", "link", "compare")
"""The verbs that find a lab and leave it."""
WITHOUT = ("up", "scale")
"""Those that make their own."""


@dataclass(frozen=True)
class Cell:
    """One process, ended in one way at one moment of one command."""

    verb: str
    moment: str
    victim: str
    number: Signals

    def __str__(self) -> str:
        return f"{self.verb}-{self.moment}-{self.victim}-{self.number.name}".replace(" ", "-")


@dataclass(frozen=True)
class Outcome:
    """What must come of a cell: one of these exit codes, these words, and whether the lab stays."""

    codes: tuple[int, ...]
    words: str
    stays: bool
    limit_s: float = END_S
    goes_on: bool = False
    """The command is not harmed: it does its work until the test stops it."""


def expected(cell: Cell) -> Outcome:
    name, number, stays = cell.number.name, cell.number, cell.verb in STAYS
    if cell in UNHARMED:
        return Outcome((130,), "stopped by you", True, goes_on=True)
    if (cell.victim, number) == ("probe client", STOP):
        return Outcome((0,), "", True, SLOW_END_S)
    if cell.victim in ("make", "group"):
        who = {"make": "SIGTERM", "group": "you" if number == INT else name}[cell.victim]
        return Outcome((2, -number), f"stopped by {who}", stays)
    if cell.victim == "command" and number == KILL:
        return Outcome((-KILL,), "", stays)
    if cell.victim == "command":
        return Outcome((130,), f"stopped by {'you' if number == INT else name}", stays)
    if cell.victim in ("starter", "holder", "unshare"):
        return Outcome((1,), "lab is gone|lab's process|cannot be entered", False)
    slow_s = SLOW_END_S if number == STOP else END_S
    if cell.victim.startswith("probe"):
        return Outcome((1,), r"the probe failed", stays, slow_s)
    if cell.victim == "agent" and number == STOP:
        words = r"the agent of node1 \(ranks 2, 3\) was stopped by a signal"
        return Outcome((1,), words, True, slow_s)
    if cell.victim in ("agent", "guard"):
        words = rf"node1 \(ranks 2, 3\) is gone: its agent was killed by {name}"
        return Outcome((1,), words, True)
    words = "was stopped by a signal" if number == STOP else f"was killed by {name}"
    who = {"rank 0": r"rank 0 \(node0\)", "rank 3": r"rank [23] \(node1\)"}[cell.victim]
    return Outcome((1,), f"{who} {words}", True, slow_s)


UNHARMED = (
    Cell("run", "training", "exporter", KILL),
    *(Cell("run", "training", "agent client", number) for number in ENDING),
    Cell("run", "training", "guard", STOP),
    Cell("run", "training", "holder", STOP),
    Cell("run", "training", "holder", INT),
    Cell("run", "training", "command", STOP),
)


def cells() -> Iterator[Cell]:
    """Every cell."""
    yield from (Cell("up", "up", "starter", number) for number in ENDING)
    for moment in ("up", "limit", "probe"):
        yield from (Cell("up", moment, "command", number) for number in ENDING)
        yield from (Cell("up", moment, "make", number) for number in (KILL, TERM))
        yield from (Cell("up", moment, "group", number) for number in (TERM, INT, HUP))
        heard = (KILL,) if moment == "up" else (KILL, TERM, HUP)  # it has just begun
        yield from (Cell("up", moment, "holder", number) for number in heard)
        yield from (Cell("up", moment, "unshare", number) for number in (KILL, HUP))
    for verb in ("up", "probe"):
        for victim in ("probe end", "probe client"):
            yield from (Cell(verb, "probe", victim, number) for number in (*ENDING, STOP))
    yield from (Cell("probe", "probe", "command", number) for number in ENDING)
    yield from (Cell("probe", "probe", "holder", number) for number in (KILL, TERM, HUP))
    yield from (Cell("down", "down", "command", number) for number in ENDING)
    yield from (Cell("link", "link", "command", number) for number in ENDING)
    for moment in ("start", "rendezvous", "baseline", "training"):
        for victim in ("guard", "agent"):
            yield from (Cell("run", moment, victim, number) for number in ENDING)
        yield from (Cell("run", moment, "make", number) for number in (KILL, TERM))
        yield from (Cell("run", moment, "group", number) for number in (TERM, INT, HUP))
    for moment in ("start", "rendezvous", "baseline", "training", "summary"):
        yield from (Cell("run", moment, "command", number) for number in ENDING)
        yield from (Cell("run", moment, "holder", number) for number in (KILL, TERM, HUP))
    for moment in ("rendezvous", "baseline", "training"):
        for victim in ("rank 0", "rank 3"):
            yield from (Cell("run", moment, victim, number) for number in (*ENDING, STOP))
        yield Cell("run", moment, "agent", STOP)
    yield from UNHARMED
    for verb, moments in (("compare", ("start", "ranks")), ("scale", ("lab", "ranks"))):
        for moment in moments:
            yield from (Cell(verb, moment, "command", number) for number in ENDING)
            heard = (KILL,) if moment == "lab" else (KILL, TERM)  # it has just begun
            yield from (Cell(verb, moment, "holder", number) for number in heard)


def suffer(it: TestLab, cell: Cell) -> None:
    """Plays one cell on a lab that is up, or down for `up`, and checks all that must hold."""
    outcome = expected(cell)
    with ExitStack() as stack:
        if cell.verb == "down":
            stack.enter_context(unwilling_client(it))
        at_work = stack.enter_context(started(it, cell))
        at_work.reach(cell.moment)
        before = at_work.steps()
        victims = at_work.victims(cell.victim)
        for pid in victims:
            os.kill(-pid if cell.victim == "group" else pid, cell.number)
        if outcome.goes_on:
            stop_later(at_work, cell, victims)
        code = at_work.end(outcome.limit_s)
    check(it, at_work, cell, outcome, code)
    assert at_work.steps() >= before


def started(it: TestLab, cell: Cell) -> "Iterator[Scene]":
    if cell.victim in ("make", "group"):
        return scene(it, *MADE[cell.verb], f"LAB={it.name}", make=checkout(it))
    words = COMMANDS["summary" if cell.moment == "summary" else cell.verb]
    return scene(it, *words, *([] if cell.verb == "scale" else [f"--lab={it.name}"]))


def stop_later(at_work: Scene, cell: Cell, victims: Sequence[int]) -> None:
    """Sees the command do more of its work, and stops it."""
    if (cell.victim, cell.number) == ("command", STOP):
        time.sleep(SLEPT_S)
        os.kill(victims[0], CONT)
    before = at_work.steps()
    wait_until(lambda: at_work.steps() > before + 1, SLOW_END_S, "going on")
    os.kill(at_work.process.pid, INT)


def check(it: TestLab, at_work: Scene, cell: Cell, outcome: Outcome, code: int) -> None:
    wait_until(lambda: left(it, outcome.stays) == {}, END_S, f"gone: {left(it, outcome.stays)}")
    screen = at_work.screen()
    assert code in outcome.codes, (code, screen)
    assert re.search(outcome.words, " ".join(screen.split())), screen  # lines are wrapped
    assert "Traceback" not in screen, screen
    if cell.verb == "run":
        check_kept(it, at_work)
    labs = json.loads(it.command("status", "--json").stdout)["labs"]
    assert [each["lab"] for each in labs if each["state"] == "up"] == [it.name] * outcome.stays


def left(it: TestLab, stays: bool) -> dict[int, str]:
    """What runs and should not."""
    kept = [pid for client in (False, True) for pid in named(it, "holder.py hold", client=client)]
    kept += named(it, "jobs.server")
    return {pid: line for pid, line in marked(it).items() if not (stays and pid in kept)}


def check_kept(it: TestLab, at_work: Scene) -> None:
    """The run is listed as what it is, with the steps that it had when it ended."""
    folder = at_work.run()
    if folder is None:
        return  # it was ended before it had one
    runs = json.loads(it.command("runs", "--json").stdout)["runs"]
    (listed,) = [each for each in runs if each["run_id"] == folder.name]
    if listed["state"] == "killed":
        assert at_work.process.returncode == -KILL
        return
    assert listed["state"] == "failed"
    assert listed["summary"]["steps"] >= min(at_work.steps(rank) for rank in range(4))


def main(words: Sequence[str]) -> int:
    """Runs every cell whose name has one of these words; returns how many went wrong."""
    wrong, before = 0, host_network()
    asked = [cell for cell in cells() if not words or any(word in str(cell) for word in words)]
    with tempfile.TemporaryDirectory(prefix="ddplab-kills-") as folder:
        it = TestLab("kills", Path(folder))
        (it.home / "state").mkdir(mode=0o700)
        for cell in asked:
            started_s = time.monotonic()
            told = attempt(it, cell)
            wrong += told != "holds"
            sys.stdout.write(f"{cell!s:50} {time.monotonic() - started_s:5.1f} s  {told}\n")
            sys.stdout.flush()
        it.command("down", f"--lab={it.name}")
    sys.stdout.write(f"{wrong} of {len(asked)} cells do not hold; ")
    sys.stdout.write(f"network as before: {host_network() == before}\n")
    return wrong


def attempt(it: TestLab, cell: Cell) -> str:
    try:
        if cell.verb in WITHOUT:
            it.command("down", f"--lab={it.name}")
        else:
            done = it.command(
                "up", "--no-probe", "--backend=netns", "--cluster=2x2", f"--lab={it.name}"
            )
            assert done.returncode == 0, done.stdout + done.stderr
        suffer(it, cell)
    except Exception:
        it.command("down", f"--lab={it.name}")
        return f"DOES NOT HOLD\n{traceback.format_exc()}"
    return "holds"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
