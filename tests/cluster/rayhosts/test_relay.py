"""The launcher's side of the driver, against a stand-in for it: answers, refusals, its end."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.errors import HostError, NodeError
from cluster.nodes import Node
from cluster.rayhosts.nodes import Hosted, RayNodes
from cluster.rayhosts.relay import DriverError, Relay

ECHO = """
import json, sys
kept = []
for line in sys.stdin:
    order = json.loads(line)
    answer = {"id": order["id"], "result": order}
    if order["op"] == "refuse":
        answer = {"id": order["id"], "error": {"kind": "odd", "words": "not this"}}
    if order["op"] == "later":
        continue
    if order["op"] == "echo":
        kept.append(answer)
        if len(kept) == 20:
            for each in reversed(kept):
                print(json.dumps(each), flush=True)
        continue
    if order["op"] == "die":
        print("what broke", file=sys.stderr)
        sys.exit(3)
    if order["op"] == "killed":
        import os; os.kill(os.getpid(), 9)
    if order.get("method") == "sees":
        answer["result"] = "is not there" if order["node"] == 1 else None
    if order.get("method") == "read":
        sys.exit(4)
    print(json.dumps(answer), flush=True)
"""
NODES = [
    Hosted(Node(f"node{at}", at, f"10.0.0.{at}", "eth0"), at, {"routes": []}) for at in range(2)
]


@contextmanager
def relayed() -> Iterator[Relay]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", ECHO], stdin=pipe, stdout=pipe, stderr=pipe)
    relay = Relay(process)
    try:
        yield relay
    finally:
        relay.close()
        assert process.poll() is not None


def test_answers_find_who_asked() -> None:
    with relayed() as relay:
        got: dict[int, int] = {}

        def ask(value: int) -> None:
            got[value] = relay.ask("echo", 20, value=value)["value"]

        threads = [threading.Thread(target=ask, args=(value,)) for value in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert got == {value: value for value in range(20)}


def test_a_refusal_is_raised_with_its_kind() -> None:
    with relayed() as relay, pytest.raises(DriverError, match="not this") as caught:
        relay.ask("refuse", 20)
    assert caught.value.kind == "odd"


def test_a_late_answer_is_not_waited_for() -> None:
    with (
        relayed() as relay,
        pytest.raises(DriverError, match=r"later was not answered within 0\.1"),
    ):
        relay.ask("later", 0.1)


@pytest.mark.parametrize(
    ("op", "words"),
    [("die", "ended with status 3: what broke"), ("killed", "was killed by SIGKILL")],
)
def test_the_drivers_end_is_told_to_all_who_wait_and_to_who_asks_next(op: str, words: str) -> None:
    with relayed() as relay:
        told: list[str] = []

        def wait() -> None:
            try:
                relay.ask("later", 20)
            except DriverError as exc:
                told.append(str(exc))

        waiting = threading.Thread(target=wait)
        waiting.start()
        with pytest.raises(DriverError, match=words):
            relay.ask(op, 20)
        waiting.join(20)
        assert len(told) == 1 and words in told[0]
        with pytest.raises(DriverError, match=words) as caught:
            relay.ask("next", 20)
        assert caught.value.kind == "ended"


def test_a_program_ends_with_the_driver_and_names_its_node() -> None:
    with relayed() as relay:
        nodes = RayNodes(relay, NODES)
        process = nodes.exec(nodes.list()[1], ["sleep", "30"])
        assert process.stdin and process.stdout and process.stderr
        with process.stdin, process.stdout, process.stderr:
            assert process.wait(20) == 1
            assert process.stdout.read() == b""
            said = process.stderr.read().decode()
        assert said.startswith(
            "the Ray actor on node1 (10.0.0.1) does not answer: the driver of Ray"
        )
        with pytest.raises(NodeError, match="the Ray actor on node0"):
            nodes.exec(nodes.list()[0], ["true"])


def test_every_node_is_asked_for_a_file() -> None:
    with relayed() as relay:
        nodes = RayNodes(relay, NODES)
        with pytest.raises(HostError, match=r"/data is not there on node1 \(10\.0\.0\.1\)"):
            nodes.require_visible(Path("/data"))
