"""The agents of one job, one in each node it uses, and what they tell, in one queue.

Owns their processes and the lines that go in and out. What the events mean is decided by `watch`;
when an agent's standard input closes it kills all its ranks, so closing ends everything.
"""

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from cluster.nodes import Node, NodeProcess, Nodes

CLOSE_TIMEOUT_S = 3.0
KEPT_ERROR_LINES = 20

AgentEvent = tuple[int, Mapping[str, Any]]  # node index, what its agent told


@dataclass(frozen=True)
class _Agent:
    node: Node
    process: NodeProcess
    errors: deque[str]
    threads: tuple[threading.Thread, ...]


class Agents:
    """Starts an agent in every node when entered; leaving ends them and all their ranks.

    `next_event` yields their events as (node index, event); besides the agent's own there are
    `{"event": "stopped" or "continued"}` without a rank for an agent itself, `{"event": "closed",
    "status", "errors"}` when one has ended, and whatever `put` was given.
    """

    def __init__(
        self,
        nodes: Nodes,
        used: Sequence[Node],
        preload: Sequence[str],
        environment: Mapping[str, str],
        cwd: str | None,
    ) -> None:
        self._nodes = nodes
        self._preload = preload
        self._used = used
        self._environment = environment
        self._cwd = cwd
        self._agents: dict[int, _Agent] = {}
        self._events: queue.SimpleQueue[AgentEvent] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        try:
            for node in self._used:
                self._agents[node.index] = self._start(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def next_event(self, timeout_s: float) -> AgentEvent | None:
        """None when there was none in time."""
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def put(self, node: int, event: Mapping[str, Any]) -> None:
        """Adds an event from elsewhere; safe inside a signal handler (the queue is reentrant)."""
        self._events.put((node, event))

    def send(self, node: int, order: Mapping[str, Any]) -> None:
        """An order for one agent. One that is gone does not hear it; its `closed` event tells."""
        pipe = self._agents[node].process.stdin
        if pipe is not None:
            with suppress(OSError, ValueError):
                pipe.write(json.dumps(order, allow_nan=False).encode() + b"\n")
                pipe.flush()

    def close(self) -> None:
        """Ends every agent, and with it every rank, within seconds."""
        for agent in self._agents.values():
            _close_pipe(agent.process.stdin)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for agent in self._agents.values():
            with suppress(Exception):  # each backend has its own timeout error
                agent.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait(timeout=CLOSE_TIMEOUT_S)
            for thread in agent.threads:
                thread.join(timeout=1)
            _close_pipe(agent.process.stdout)
            _close_pipe(agent.process.stderr)
        self._agents.clear()

    def _start(self, node: Node) -> _Agent:
        argv = [self._nodes.python, "-m", "cluster.agent"]
        argv += ["--node", node.name, "--address", node.address]
        for module in self._preload:
            argv += ["--preload", module]
        process = self._nodes.exec(node, argv, env=self._environment, cwd=self._cwd)
        errors: deque[str] = deque(maxlen=KEPT_ERROR_LINES)
        keep = threading.Thread(target=self._keep, args=(node, process, errors), daemon=True)
        agent = _Agent(
            node,
            process,
            errors,
            (
                keep,
                threading.Thread(
                    target=self._read, args=(node, process, errors, keep), daemon=True
                ),
            ),
        )
        for thread in agent.threads:
            thread.start()
        return agent

    def _keep(self, node: Node, process: NodeProcess, errors: deque[str]) -> None:
        for line in _lines(process.stderr):
            if event := _parse(line):  # from the agent's guard
                self._events.put((node.index, event))
            else:
                errors.append(line)

    def _read(
        self, node: Node, process: NodeProcess, errors: deque[str], keep: threading.Thread
    ) -> None:
        for line in _lines(process.stdout):
            event = _parse(line)
            if event is None:
                errors.append(line)  # not ours: something in the node wrote to standard output
            else:
                self._events.put((node.index, event))
        keep.join(timeout=1)
        with suppress(Exception):
            process.wait(timeout=1)
        closed = {"event": "closed", "status": process.poll(), "errors": list(errors)}
        self._events.put((node.index, closed))


def _lines(pipe: IO[bytes] | None) -> Sequence[str] | Any:
    if pipe is None:
        return
    with suppress(OSError, ValueError):  # closed under us while ending
        for line in pipe:
            yield line.decode(errors="replace").rstrip("\n")


def _parse(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _close_pipe(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with suppress(OSError):
            pipe.close()
