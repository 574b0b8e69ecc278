"""The agent in a node: its ranks die with whoever started it, however that one ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.holding import parent_of
from cluster.netns import NetnsNodes
from cluster.nodes import Nodes
from cluster.spec import load_cluster
from tests.cluster.agent_client import TARGETS, AgentClient
from tests.live.host import eventually, namespace_of, processes_in, python_environment

pytestmark = pytest.mark.netns
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsNodes]:
    made = NetnsNodes(tmp_path_factory.mktemp("lab"))
    try:
        made.up(load_cluster("2x2"))
        yield made
    finally:
        made.down()


@pytest.fixture
def idle(nodes: NetnsNodes) -> str:
    """The lab's process namespace, in which only the holder lives before and after a test."""
    pid: int = nodes.save()["holder"]["pid"]
    namespace = namespace_of(pid, "pid")
    assert eventually(lambda: processes_in(namespace) == [pid])
    return namespace


def agent_in(nodes: Nodes, number: int = 0) -> AgentClient:
    node = nodes.list()[number]
    argv = [nodes.python, "-m", "cluster.agent", "--node", node.name, "--address", node.address]
    return AgentClient(nodes.exec(node, [*argv, "--preload", TARGETS]))


def released(agent: AgentClient) -> None:
    """Ends the agent, if it has not ended, by the end of its input."""
    for pipe in (agent.process.stdin, agent.process.stderr):
        assert pipe is not None
        pipe.close()
    agent.process.wait(TIMEOUT_S)


def alone(nodes: NetnsNodes, namespace: str) -> bool:
    return processes_in(namespace) == [nodes.save()["holder"]["pid"]]


def test_ranks_run_in_their_node_and_are_told_of(nodes: NetnsNodes, idle: str) -> None:
    agents = [agent_in(nodes, number) for number in range(2)]
    for number, agent in enumerate(agents):
        assert agent.hear("ready")["node"] == f"node{number}"
        agent.start("report", {"word": "red"}, {"word": "blue"})
    for agent in agents:
        events = agent.until_done()
        assert [e["status"] for e in events if e["event"] == "exit"] == [0, 0]
        assert {e["line"] for e in events if e["event"] == "log"} == {
            "to stdout red",
            "to stdout blue",
            "to stderr mark0",
            "to stderr mark1",
        }
        assert agent.close() == 0
        released(agent)
    assert eventually(lambda: alone(nodes, idle))


def test_the_named_port_is_reachable_from_another_node(nodes: NetnsNodes) -> None:
    here, there = nodes.list()
    agent = agent_in(nodes, there.index)
    port = agent.hear("ready")["port"]
    script = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    process = nodes.exec(here, [nodes.python, "-c", script, there.address, str(port)])
    assert process.stdin and process.stdout and process.stderr
    errors = process.stderr.read().decode()
    assert process.wait(TIMEOUT_S) == 0, errors
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()
    assert agent.close() == 0
    released(agent)


@pytest.mark.parametrize("end", ["close", "kill the client and close"])
def test_the_launchers_end_kills_ranks_and_what_they_started(
    nodes: NetnsNodes, idle: str, end: str
) -> None:
    agent = agent_in(nodes)
    agent.start("stay", {}, {})
    for _ in range(2):
        agent.hear("message")
    assert (
        len(processes_in(idle)) == 1 + 2 + 2 + 2
    )  # holder, guard and agent, ranks, their children
    if end != "close":
        agent.process.kill()
        agent.process.wait(TIMEOUT_S)
    released(agent)
    assert eventually(lambda: alone(nodes, idle))


LAUNCHER = """
import json, sys, time
from pathlib import Path
from cluster.netns import NETNS
nodes = NETNS.attach(Path(sys.argv[1]), json.loads(sys.argv[2]))
for node in nodes.list():
    argv = [nodes.python, "-m", "cluster.agent", "--node", node.name, "--address", node.address]
    agent = nodes.exec(node, argv)
    ranks = [{"rank": k, "local_rank": k, "env": {}, "argument": {}} for k in range(2)]
    order = {"op": "start", "target": "tests.cluster.agent_targets:stay", "ranks": ranks}
    agent.stdin.write(json.dumps(order).encode() + b"\\n")
    agent.stdin.flush()
    heard = 0
    while heard < 2:
        heard += json.loads(agent.stdout.readline())["event"] == "message"
    globals()[node.name] = agent
print("up", flush=True)
time.sleep(600)
"""


def guards_in(namespace: str) -> list[int]:
    """Not the agents and ranks, which look the same and are below them."""
    inside = {pid: parent_of(pid) for pid in processes_in(namespace)}
    guards = []
    for pid, parent in inside.items():
        if b"cluster.agent" in Path(f"/proc/{pid}/cmdline").read_bytes() and parent not in inside:
            guards.append(pid)
    assert len(guards) == 2
    return guards


def stop(agents: str, namespace: str) -> None:
    """Stops the guards, or the agents below them."""
    for guard in guards_in(namespace) if agents != "run" else []:
        (agent,) = [pid for pid in processes_in(namespace) if parent_of(pid) == guard]
        os.kill(guard if agents == "guards stopped" else agent, signal.SIGSTOP)
        if agents == "guards stopped":  # its client follows, and wakes it when it is woken itself
            client = parent_of(guard)
            assert eventually(lambda client=client: state_of(client) == "T")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("agents", ["run", "guards stopped", "stopped"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_is_killed_takes_its_job_along_and_not_the_lab(
    nodes: NetnsNodes, idle: str, tmp_path: Path, number: signal.Signals, agents: str
) -> None:
    words = [str(tmp_path), json.dumps(nodes.save())]
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *words],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as launcher:
        try:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == b"up\n"
            assert len(processes_in(idle)) == 1 + 2 * (2 + 2 + 2)
            stop(agents, idle)
            launcher.send_signal(number)
            launcher.wait(TIMEOUT_S)
        finally:
            launcher.kill()
    assert eventually(lambda: alone(nodes, idle))
    agent = agent_in(nodes)
    agent.start("end", {"how": "exit", "status": 5})
    assert agent.hear("exit")["status"] == 5
    assert agent.close() == 0
    released(agent)


def test_a_killed_rank_is_told_with_its_signal(nodes: NetnsNodes, idle: str) -> None:
    agent = agent_in(nodes)
    agent.start("stay", {}, {})
    said = [agent.hear("message") for _ in range(2)]
    victim = said[0]["data"]["pid"]
    process = nodes.exec(nodes.list()[1], ["kill", "-9", str(victim)])
    assert process.wait(TIMEOUT_S) == 0
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    ending = agent.hear("exit")
    assert (ending["rank"], ending["signal"]) == (said[0]["rank"], "SIGKILL")
    assert agent.close() == 0
    released(agent)
    assert eventually(lambda: alone(nodes, idle))
