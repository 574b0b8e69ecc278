"""Whatever is killed, and whenever: the job ends, says why, and leaves nothing."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.lab import SMALL, TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

ENDLESS = (*SMALL, "train.steps=100000")
START_S = 60
END_S = 5


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[TestLab]:
    with lab(tmp_path, "2x2", "--rate", "1gbit", "--no-probe") as it:
        yield it


@contextmanager
def training(it: TestLab, *options: str) -> "Iterator[subprocess.Popen[str]]":
    """A job that will not end by itself, seen to have trained three steps."""
    sets = [word for setting in ENDLESS for word in ("--set", setting)]
    latest = it.runs / "latest"
    before = latest.resolve()  # of a run that was there already
    with it.start("run", "hier", "--lab", it.name, *sets, *options) as process:

        def trained() -> bool:
            assert process.poll() is None, process.communicate()
            return latest.resolve() != before and steps_done(it) >= 3

        try:
            wait_until(trained, START_S)
            yield process
        finally:
            process.kill()


def steps_done(it: TestLab) -> int:
    file = it.runs / "latest" / "rank0.jsonl"
    return file.read_text().count('"kind":"step"') if file.exists() else 0


def wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"not so within {limit_s} s"
        time.sleep(0.05)


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


def of_the_job(it: TestLab) -> dict[int, str]:
    return {pid: command for pid, command in marked(it).items() if "cluster.agent" in command}


def rank_pid(it: TestLab, rank: int) -> int:
    """A rank as this machine numbers it; its own record tells its number inside the lab."""
    header = json.loads((it.runs / "latest" / f"rank{rank}.jsonl").read_text().splitlines()[0])
    (pid,) = [
        pid
        for pid in of_the_job(it)
        if re.search(rf"^NSpid:.*\t{header['pid']}$", process_status(pid), re.MULTILINE)
    ]
    return pid


def process_status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def test_a_killed_rank_then_a_killed_launcher_leave_a_lab_that_runs_the_next_job(
    two_nodes: TestLab,
) -> None:
    with training(two_nodes, "--json") as process:
        os.kill(rank_pid(two_nodes, 2), signal.SIGKILL)
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 1, err
        summary = json.loads(out)
        assert summary["status"] == "failed"
        assert summary["error"]["message"].startswith("rank 2 (node1) was killed by SIGKILL")
        assert summary["steps"] >= 3  # what it had is kept
        assert not of_the_job(two_nodes)
    with training(two_nodes) as process:
        assert of_the_job(two_nodes)
        process.kill()
        process.communicate()
        wait_until(lambda: not of_the_job(two_nodes), END_S)
        for node in ("node0", "node1"):
            assert not two_nodes.in_node(node, "ss", "-Htln")  # no port of the job listens
    assert two_nodes.run("hier", *SMALL, "train.steps=2")["ranks_agree"]


def test_a_killed_holder_leaves_nothing_of_the_lab(two_nodes: TestLab) -> None:
    with training(two_nodes, "--json") as process:
        (holder,) = [
            pid
            for pid, command in marked(two_nodes).items()
            if " hold " in command and "unshare" not in command
        ]
        os.kill(holder, signal.SIGKILL)
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 1, err
        assert "lab is gone" in json.loads(out)["error"]["message"]
        wait_until(lambda: not marked(two_nodes), END_S)
        gone = two_nodes.command("status", "--lab", two_nodes.name)
        assert gone.returncode == 1
        assert "make cluster-up" in gone.stderr
        again = two_nodes.command("up", "--lab", two_nodes.name, "--no-probe")
        assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_run_keeps_what_it_had(two_nodes: TestLab, name: str) -> None:
    with training(two_nodes) as process:
        process.send_signal(signal.Signals[name])
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 130, (out, err)
        told = re.search(r"stopped by (\w+) at step (\d+); (\d+) steps kept in", out + err)
        assert told, (out, err)
        assert told[1] == ("you" if name == "SIGINT" else "SIGTERM")
        summary = json.loads((two_nodes.runs / "latest" / "summary.json").read_text())
        assert summary["status"] == "failed"
        assert summary["steps"] == int(told[3]) >= 3
        assert not of_the_job(two_nodes)
        assert "Traceback" not in out + err


def host_network() -> str:
    """All that a lab could change outside: links, namespaces, routes, firewall."""
    parts = []
    for command in (
        ["ip", "-o", "link"],
        ["ip", "netns", "list"],
        ["ip", "route", "show", "table", "all"],
        ["iptables-save"],
        ["nft", "list", "ruleset"],
    ):
        try:
            parts.append(subprocess.run(command, capture_output=True, text=True).stdout)
        except FileNotFoundError:
            parts.append("not installed")
    return re.sub(r"\[\d+:\d+\]|^#.*$", "", "\n".join(parts), flags=re.MULTILINE)


def test_the_machines_own_network_stays_as_it_is(tmp_path: Path) -> None:
    before = host_network()
    with lab(tmp_path, "2x2", "--rate", "1gbit", "--no-probe") as it, training(it) as process:
        during = host_network()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_S)
    assert before == during == host_network()
