"""The ends of the probe, one in each node, as seen from here: started, told, listened to, ended."""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from cluster.errors import NodeError
from cluster.lines import LineReader
from cluster.nodes import Node, NodeProcess, Nodes
from cluster.probe_plan import Flow

START_TIMEOUT_S = 20.0
GRACE_S = 20.0
PING_COUNT = 20
END_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Measured:
    """What the receiving end of one flow saw, after bursts were drained."""

    bytes_per_s: float
    acknowledgements_per_s: float


class ProbeEnds:
    """A context in which every node has an end of the probe running."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._processes: dict[Node, NodeProcess] = {}
        self._ports: dict[Node, int] = {}
        self._answers: dict[int, list[float]] = {}
        self._errors: list[str] = []
        self._selector = selectors.DefaultSelector()
        self._next_id = 0

    def __enter__(self) -> Self:
        try:
            for node in self._nodes.list():
                self._start(node)
            self._until(lambda: len(self._ports) == len(self._processes), START_TIMEOUT_S, "start")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def ping(self, src: Node, dst: Node) -> float:
        """Seconds of a round trip between two idle nodes."""
        number = self._tell(src, {"op": "ping", "to": self._place(dst), "count": PING_COUNT})
        self._wait([number], GRACE_S, f"ping {src.name} {dst.name}")
        return self._answers.pop(number)[0]

    def measure(self, flows: Sequence[Flow]) -> Mapping[Flow, Measured]:
        """What flows carry that run at the same time."""
        numbers = {
            self._tell(flow.src, {"op": "flow", "to": self._place(flow.dst), **flow.order}): flow
            for flow in flows
        }
        longest = max(_expected_s(flow) for flow in flows)
        names = ", ".join(flow.name for flow in flows)
        self._wait(list(numbers), longest + GRACE_S, names)
        return {flow: Measured(*self._answers.pop(number)) for number, flow in numbers.items()}

    def _start(self, node: Node) -> None:
        argv = [self._nodes.python, "-m", "cluster.probe_end", "--address", node.address]
        process = self._nodes.exec(node, argv)
        self._processes[node] = process
        output, complaints = _pipe(process.stdout), _pipe(process.stderr)
        self._watch(output, partial(self._heard, node))
        self._watch(complaints, partial(self._complained, node))

    def _watch(self, pipe: IO[bytes], take: Any) -> None:
        os.set_blocking(pipe.fileno(), False)
        reader = LineReader(pipe.fileno(), 1 << 16, take)
        self._selector.register(pipe, selectors.EVENT_READ, (pipe, reader))

    def _heard(self, node: Node, line: bytes) -> None:
        event = json.loads(line)
        if event["event"] == "ready":
            self._ports[node] = event["port"]
        elif event["event"] == "done":
            self._answers[event["id"]] = event["values"]
        else:
            self._errors.append(f"{node.name} {event['message']}")

    def _complained(self, node: Node, line: bytes) -> None:
        self._errors.append(f"{node.name}: {line.decode(errors='replace')}")

    def _place(self, node: Node) -> list[Any]:
        return [node.address, self._ports[node]]

    def _tell(self, node: Node, command: Mapping[str, Any]) -> int:
        self._next_id += 1
        pipe = _pipe(self._processes[node].stdin)
        try:
            pipe.write(json.dumps({"id": self._next_id, **command}).encode() + b"\n")
            pipe.flush()
        except OSError:
            self._fail("start", START_TIMEOUT_S, [node.name])
        return self._next_id

    def _wait(self, numbers: Sequence[int], timeout_s: float, what: str) -> None:
        self._until(lambda: all(number in self._answers for number in numbers), timeout_s, what)

    def _until(self, done: Any, timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            left = deadline - time.monotonic()
            ended = [n.name for n, process in self._processes.items() if process.poll() is not None]
            if left <= 0 or ended or self._errors:
                self._fail(what, timeout_s, ended)
            for key, _ in self._selector.select(min(left, 0.2)):
                pipe, reader = key.data
                if not reader.read():
                    self._selector.unregister(pipe)

    def _fail(self, what: str, timeout_s: float, ended: Sequence[str]) -> NoReturn:
        for node in self._nodes.list():
            self._nodes.facts(node)  # a lab that is gone is the cause, and is told by this
        if self._errors:
            seen = self._errors[-1]
        elif ended:
            seen = f"the end in {', '.join(ended)} has ended"
        else:
            seen = f"no answer within {timeout_s:g} s"
        raise NodeError(
            f"the probe failed ({what})",
            "in every node a program of the probe sends and receives until all is measured",
            "measure again: make cluster-probe, or make cluster-up where the lab is not up",
            seen=seen,
        )

    def _end(self) -> None:
        self._selector.close()
        for process in self._processes.values():
            with suppress(OSError):
                _pipe(process.stdin).close()
        deadline = time.monotonic() + END_TIMEOUT_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_TIMEOUT_S)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _expected_s(flow: Flow) -> float:
    order = flow.order
    rate = (flow.rate_bits_per_s or 8e9) / 8
    moved_s = (order["skip_bytes"] + order["measure_bytes"]) / rate
    return order["skip_s"] + order["measure_s"] + moved_s


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise NodeError("a program in a node was started without pipes")
    return pipe
