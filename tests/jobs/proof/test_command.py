"""`ddplab proof` as it is typed: its processes are spawned, and none outlives it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.jobs.command import valid

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "jobs.cli", "proof")
MARK = "DDPLAB_PROOF_TEST"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    """The commands of a test, which are ended with it; their temporary files are its own."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for pid in marked(tmp_path):
        os.kill(pid, signal.SIGKILL)


def start(tmp_path: Path, *words: str) -> "subprocess.Popen[str]":
    (tmp_path / "an odd name").mkdir()
    return subprocess.Popen(
        [*COMMAND, *words],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path / "an odd name"),
            MARK: str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def marked(tmp_path: Path) -> list[int]:
    """The processes of this test, by their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{MARK}={tmp_path}".encode() in environment:
            found.append(int(entry.parent.name))
    return found


def test_it_answers_in_json_and_leaves_nothing(
    tmp_path: Path, started: list["subprocess.Popen[str]"]
) -> None:
    started.append(start(tmp_path, "--json"))
    out, err = started[0].communicate()
    document = valid(out, "proof")
    assert (started[0].returncode, err, document["ok"]) == (0, "", True), (out, err)
    assert out.count("\n") == 1
    assert list((tmp_path / "an odd name").iterdir()) == []
    assert marked(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_it_with_all_its_ranks(
    tmp_path: Path, started: list["subprocess.Popen[str]"], number: signal.Signals
) -> None:
    process = start(tmp_path)
    started.append(process)
    wait_until(lambda: len(marked(tmp_path)) >= 6)  # four ranks, and what multiprocessing starts
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    out, err = process.communicate()
    wait_until(lambda: marked(tmp_path) == [])  # one that is importing torch sees it afterwards
    if number != signal.SIGKILL:  # after which nobody tells a process that just begins
        assert "Traceback" not in out + err
        who = "you" if number == signal.SIGINT else number.name
        assert (process.returncode, err.strip()) == (130, f"ddplab: stopped by {who}")
        assert list((tmp_path / "an odd name").iterdir()) == []


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
