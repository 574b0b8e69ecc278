"""The agent on this machine itself, without namespaces: ranks, logs, endings, orders to stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.agent_client import TARGETS, AgentClient

ROOT = Path(__file__).parents[2]
ARGV = [sys.executable, "-m", "cluster.agent", "--node", "node0", "--address", "127.0.0.1"]
Start = Callable[..., AgentClient]


@pytest.fixture
def start_agent() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*preload: str) -> AgentClient:
        words = [word for module in preload for word in ("--preload", module)]
        started.append(
            subprocess.Popen(
                [*ARGV, *words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        return AgentClient(started[-1])

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def agent(start_agent: Start) -> AgentClient:
    return start_agent(TARGETS)


def gone(pid: int, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def of(events: list[dict[str, Any]], name: str, rank: int = 0) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name and event["rank"] == rank]


def test_says_what_it_is_and_what_it_loaded(agent: AgentClient) -> None:
    ready = agent.hear("ready")
    assert ready["node"] == "node0"
    assert ready["cores"] == len(os.sched_getaffinity(0))
    assert agent.hear("preloaded")["seconds"] >= 0
    with socket.create_connection(("127.0.0.1", ready["port"]), 5):
        pass
    assert agent.close() == 0


def test_garbage_is_looked_for_in_what_a_rank_makes_and_not_in_what_was_loaded(
    agent: AgentClient,
) -> None:
    agent.start("collect", {})
    assert agent.hear("message")["data"] == {"enabled": True, "frozen": True}
    assert agent.close() == 0


def test_a_rank_that_is_stopped_is_told_of(agent: AgentClient) -> None:
    agent.start("stay", {})
    pid = agent.hear("message")["data"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert agent.hear("stopped")["rank"] == 0
    os.kill(pid, signal.SIGCONT)
    assert agent.hear("continued")["rank"] == 0
    assert agent.close() == 0


@pytest.mark.parametrize("told", [False, True])
def test_the_end_of_input_ends_an_import_that_goes_on(start_agent: Start, told: bool) -> None:
    agent = start_agent("tests.cluster.slow_import")
    agent.hear("ready")
    if told:
        agent.start("stay", {})
        time.sleep(0.2)
        assert agent.process.poll() is None  # an order does not end it
    assert agent.close() == 0


def test_passes_on_logs_messages_and_endings(agent: AgentClient) -> None:
    agent.start("report", {"word": "red"}, {"word": "blue"})
    events = agent.until_done()
    for rank, word in enumerate(["red", "blue"]):
        assert [event["line"] for event in of(events, "log", rank)] == [
            f"to stdout {word}",
            f"to stderr mark{rank}",
        ]
        assert of(events, "message", rank)[0]["data"] == {"word": word, "group": True}
        assert len(of(events, "started", rank)) == 1
        (ending,) = of(events, "exit", rank)
        assert (ending["status"], ending["signal"]) == (0, None)
    assert agent.close() == 0


@pytest.mark.parametrize(
    ("argument", "status", "signal_name", "last_line"),
    [
        ({"how": "exit", "status": 3}, 3, None, None),
        ({"how": "exit"}, 0, None, None),
        ({"how": "raise"}, 1, None, "ValueError: as told"),
        ({"how": "kill"}, None, "SIGTERM", None),
        ({"how": "text"}, 1, None, "a last word"),
        ({"how": "cut"}, 0, None, "no newline"),
    ],
)
def test_endings_are_told_as_they_were(
    agent: AgentClient,
    argument: dict[str, Any],
    status: int | None,
    signal_name: str | None,
    last_line: str | None,
) -> None:
    agent.start("end", argument)
    events = agent.until_done()
    (ending,) = of(events, "exit")
    assert (ending["status"], ending["signal"]) == (status, signal_name)
    lines = [event["line"] for event in of(events, "log")]
    assert (lines[-1] if lines else None) == last_line


def test_only_local_rank_0_inherits_the_listening_socket(agent: AgentClient) -> None:
    fd = agent.hear("ready")["listen_fd"]
    agent.start("listen", {"fd": fd}, {"fd": fd}, {"fd": fd})
    events = agent.until_done()
    assert [of(events, "message", rank)[0]["data"]["holds"] for rank in range(3)] == [
        True,
        False,
        False,
    ]


def test_the_end_of_its_input_kills_ranks_and_what_they_started(agent: AgentClient) -> None:
    agent.start("stay", {}, {})
    processes = [pid for _ in range(2) for pid in agent.hear("message")["data"].values()]
    assert len(set(processes)) == 4
    assert agent.close() == 0
    assert all(gone(pid) for pid in processes)
    endings = [event for event in agent.events() if event["event"] == "exit"]
    assert {ending["signal"] for ending in endings} == {"SIGKILL"}


ENDED_BY = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("number", ENDED_BY)
@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_all_ends_with_an_agent_or_a_guard_that_is_killed(
    agent: AgentClient, victim: str, number: signal.Signals
) -> None:
    """Also what left the rank's process group and session."""
    pid = agent.hear("ready")["pid"]
    agent.start("stay", {}, {})
    processes = [pid for _ in range(2) for pid in agent.hear("message")["data"].values()]
    os.kill(pid if victim == "agent" else agent.process.pid, number)
    assert agent.process.wait(10) == -number
    assert all(gone(each) for each in (pid, *processes))


def test_a_stopped_agent_ends_with_its_input(agent: AgentClient) -> None:
    pid = agent.hear("ready")["pid"]
    agent.start("stay", {})
    processes = list(agent.hear("message")["data"].values())
    complaints = agent.process.stderr
    assert complaints is not None
    os.kill(pid, signal.SIGSTOP)
    assert complaints.readline() == b'{"event": "stopped"}\n'
    os.kill(pid, signal.SIGCONT)
    assert complaints.readline() == b'{"event": "continued"}\n'
    os.kill(pid, signal.SIGSTOP)
    assert agent.close() == -signal.SIGKILL
    assert all(gone(each) for each in (pid, *processes))


def test_killed_ranks_are_told_with_their_signals(agent: AgentClient) -> None:
    agent.start("stay", *[{} for _ in ENDED_BY])
    told = [agent.hear("message") for _ in ENDED_BY]
    for message, number in zip(told, ENDED_BY, strict=True):
        os.kill(message["data"]["pid"], number)
    events = agent.until_done()
    for message, number in zip(told, ENDED_BY, strict=True):
        assert of(events, "exit", message["rank"])[0]["signal"] == number.name
    assert not [event for event in events if event["event"] == "log"]  # no traceback


def test_a_rank_that_never_comes_back_to_python_is_ended_by_a_signal(agent: AgentClient) -> None:
    agent.start("busy", {})
    pid = agent.hear("message")["data"]["pid"]
    os.kill(pid, signal.SIGTERM)
    assert agent.hear("exit")["signal"] == "SIGTERM"


def test_a_killed_rank_is_told_and_takes_its_group_along(agent: AgentClient) -> None:
    agent.start("stay", {}, {})
    first, second = (agent.hear("message")["data"] for _ in range(2))
    os.kill(first["pid"], signal.SIGKILL)
    assert agent.hear("exit")["signal"] == "SIGKILL"
    assert not gone(second["pid"], 0.2)
    agent.close()
    assert gone(second["pid"]) and gone(first["child"])


def test_nothing_is_lost_when_nobody_reads_for_a_while(agent: AgentClient) -> None:
    count = 8000
    agent.start("chatter", {"lines": count})
    time.sleep(0.5)
    events = agent.until_done()
    lines = [event["line"] for event in of(events, "log")]
    assert [line.split()[0] for line in lines] == [str(number) for number in range(count)]


def test_stops_while_nobody_reads() -> None:
    """The end of the input is seen although the output is stuck."""
    rank = {"rank": 0, "local_rank": 0, "env": {}, "argument": {"lines": 100_000}}
    order = {"op": "start", "target": f"{TARGETS}:chatter", "ranks": [rank]}
    with subprocess.Popen(ARGV, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            time.sleep(0.5)
            assert process.poll() is None
            process.stdin.close()
            process.wait(10)
        finally:
            process.kill()


def test_endless_lines_are_cut(agent: AgentClient) -> None:
    agent.start("pour", {"size": 300_000})
    lines = [event["line"] for event in of(agent.until_done(), "log")]
    assert "".join(lines) == "y" * 300_000
    assert max(map(len, lines)) < 200_000


@pytest.mark.parametrize(
    "command", ["no json", "[]", '{"op": "stop"}', '{"op": "start"}', '{"op": "start", "ranks": 1}']
)
def test_bad_commands_are_answered_and_survived(agent: AgentClient, command: str) -> None:
    agent.tell(command)
    assert agent.hear("error")["message"].startswith("bad command: ")
    agent.start("end", {"how": "exit", "status": 0})
    assert agent.hear("exit")["status"] == 0
    agent.start("end", {"how": "exit"})
    assert "already" in agent.hear("error")["message"]


def test_a_target_that_is_not_there(agent: AgentClient) -> None:
    agent.start("nowhere", {})
    events = agent.until_done()
    assert of(events, "exit")[0]["status"] == 1
    assert "nowhere" in of(events, "log")[-1]["line"]


def test_a_module_that_cannot_be_loaded(start_agent: Start) -> None:
    assert "no_such_module" in start_agent("no_such_module").hear("error")["message"]
