"""A command at work on a lab: its processes by what they are, and the moments it goes through."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.lab import open_lab
from tests.live.lab import ROOT, TestLab
from tools.environment import Choice, Made, sources, version, write

START_S = 60


def wait_until(condition: Callable[[], object], limit_s: float, what: str = "so") -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"not {what} within {limit_s} s"
        time.sleep(0.01)


def marked(it: TestLab) -> dict[int, str]:
    """Every process started for this lab or by its commands, by the lab's own state folder."""
    mark = f"XDG_RUNTIME_DIR={it.home / 'state'}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace")
            except OSError:
                continue
    return found


def named(it: TestLab, *words: str, client: bool = False) -> list[int]:
    """Those with all these words in their command; the clients that entered the lab, or others."""
    clients = ("nsenter", "setpriv", "unshare")
    return sorted(
        pid
        for pid, line in marked(it).items()
        if all(word in line for word in words)
        and Path(line.partition(" ")[0]).name.startswith(clients) == client
    )


def holders(it: TestLab) -> list[int]:
    starters = named(it, "holder.py start")
    return [pid for pid in named(it, "holder.py hold") if pid not in starters]


def of_the_job(it: TestLab) -> list[int]:
    return named(it, "cluster.agent") + named(it, "cluster.agent", client=True)


def agents(it: TestLab, depth: int, node: str = "") -> list[int]:
    """Processes of `cluster.agent` by how deep they are: 1 guards, 2 agents, 3 ranks."""
    above = {pid: _parent(pid) for pid in named(it, "cluster.agent", node)}

    def level(pid: int) -> int:
        return 1 + level(above[pid]) if above[pid] in above else 1

    return [pid for pid in above if level(pid) == depth]


def _parent(pid: int) -> int | None:
    try:
        found = re.search(r"^PPid:\s*(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


@dataclass
class Scene:
    """One command; what it says goes into a file, so that nobody has to read it meanwhile."""

    it: TestLab
    process: "subprocess.Popen[bytes]"
    said: Path
    earlier: frozenset[str]
    """The runs that were there before."""

    def screen(self) -> str:
        return self.said.read_text(errors="replace")

    def run(self) -> Path | None:
        """The folder of the command's own run; None before it is made."""
        for file in self.it.runs.glob("[!.]*/run.json"):
            folder = file.parent
            new = folder.name not in self.earlier and not folder.is_symlink()
            if new and json.loads(file.read_text())["lab"]["name"] == self.it.name:
                return folder
        return None

    def records(self, rank: int = 0) -> str:
        """What the command's own run has recorded of a rank so far."""
        folder = self.run()
        file = folder / f"rank{rank}.jsonl" if folder else None
        return file.read_text() if file and file.exists() else ""

    def steps(self, rank: int = 0) -> int:
        return self.records(rank).count('"kind":"step"')

    def reach(self, moment: str) -> None:
        """Waits until the command is there."""

        def arrived() -> bool:
            assert self.process.poll() is None, f"ended before {moment}: {self.screen()}"
            return bool(MOMENTS[moment](self))

        wait_until(arrived, START_S, f"at {moment}")

    def victims(self, name: str) -> list[int]:
        wait_until(lambda: VICTIMS[name](self), 5, f"there: {name}")
        return VICTIMS[name](self)

    def end(self, limit_s: float) -> int:
        """The exit code of the command, which ends within this time."""
        try:
            wait_until(lambda: self.process.poll() is not None, limit_s, "ended")
        except AssertionError as exc:
            raise AssertionError(f"{exc}: {self.screen()}\n{marked(self.it)}") from exc
        return self.process.returncode


@contextmanager
def scene(it: TestLab, *words: str, make: Path | None = None) -> Iterator[Scene]:
    """Starts `ddplab WORDS`, or `make WORDS` in a checkout, in a session of its own."""
    said = it.home / f"said-{it.name}"
    earlier = frozenset(path.name for path in it.runs.glob("*"))
    command = it.argv(*words) if make is None else ["make", *words]
    with said.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=make or it.home,
            env=it.environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_hear_all_signals,
        )
    try:
        yield Scene(it, process, said, earlier)
    finally:
        process.kill()
        process.wait()


def _hear_all_signals() -> None:
    """Also where the tests themselves were started in the background, or with nohup."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def checkout(it: TestLab) -> Path:
    """A checkout of the front door alone, in which make runs this very project's command."""
    root = it.home / "checkout"
    if root.exists():
        return root
    for name in ("tools", "cluster/catalog", "jobs/catalog"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    (root / "runs").symlink_to(it.runs)
    programs = root / ".venvs" / "1" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(Path(sys.executable).resolve())
    (programs / "ddplab").write_text(
        "import os, sys\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'jobs.cli', *sys.argv[1:]])\n"
    )
    write(programs.parent, Made(Choice(), "run", str(root.resolve()), version(), sources(root)))
    (root / ".venv").symlink_to(Path(".venvs") / "1")
    it.runs.mkdir(exist_ok=True)
    return root


@contextmanager
def unwilling_client(it: TestLab) -> Iterator[None]:
    """A program in the lab whose client was stopped: taking the lab down then takes a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(it.home / "state"))
        nodes = open_lab(it.name).nodes
        client = nodes.exec(nodes.list()[0], ["sleep", "600"])
    try:
        wait_until(lambda: named(it, "sleep 600"), START_S)
        os.kill(client.pid, signal.SIGSTOP)
        yield
    finally:
        client.kill()
        client.wait(START_S)
        for pipe in (client.stdin, client.stdout, client.stderr):
            assert pipe is not None
            pipe.close()


MOMENTS: Mapping[str, Callable[[Scene], object]] = {
    "up": lambda it: "About" in it.screen(),
    "limit": lambda it: "  start " in it.screen(),
    "probe": lambda it: len(named(it.it, "cluster.probe_end")) >= 2,
    "start": lambda it: len(agents(it.it, 2)) == 2,
    "rendezvous": lambda it: len(agents(it.it, 3)) == 4,
    "baseline": lambda it: '"kind":"baseline"' in it.records(),
    "training": lambda it: it.steps() >= 3,
    "summary": lambda it: '"kind":"end"' in it.records(),
    "lab": lambda it: holders(it.it),
    "ranks": lambda it: agents(it.it, 3),
    "down": lambda it: "taken down" in _text(it.it, "use"),
    "link": lambda it: it.process.poll() is None and _text(it.it, "lock") == str(it.process.pid),
}


def _text(it: TestLab, name: str) -> str:
    try:
        return (it.home / "state" / "ddplab" / it.name / name).read_text()
    except OSError:
        return ""


VICTIMS: Mapping[str, Callable[[Scene], list[int]]] = {
    "command": lambda it: [it.process.pid],
    "make": lambda it: [it.process.pid],
    "group": lambda it: [it.process.pid],
    "starter": lambda it: named(it.it, "holder.py start"),
    "holder": lambda it: holders(it.it),
    "unshare": lambda it: named(it.it, "holder.py hold", client=True),
    "exporter": lambda it: named(it.it, "jobs.server"),
    "probe end": lambda it: named(it.it, "cluster.probe_end")[-1:],
    "probe client": lambda it: named(it.it, "cluster.probe_end", client=True)[-1:],
    "guard": lambda it: agents(it.it, 1, "node1"),
    "agent": lambda it: agents(it.it, 2, "node1"),
    "agent client": lambda it: named(it.it, "cluster.agent", "node1", client=True)[-1:],
    "rank 0": lambda it: agents(it.it, 3, "node0")[:1],
    "rank 3": lambda it: agents(it.it, 3, "node1")[-1:],
}
