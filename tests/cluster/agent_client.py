"""The launcher's side of an agent, for tests: tells it, and hears its events."""

import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

from cluster.nodes import NodeProcess

TIMEOUT_S = 20.0
TARGETS = "tests.cluster.agent_targets"


class AgentClient:
    """Wraps the client process of one agent."""

    def __init__(self, process: NodeProcess) -> None:
        self.process = process
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self.process.stdout.close()
        self._events.put(None)

    def start(self, target: str, *arguments: dict[str, Any]) -> None:
        ranks = [
            {"rank": k, "local_rank": k, "env": {"MARK": f"mark{k}"}, "argument": argument}
            for k, argument in enumerate(arguments)
        ]
        self.tell({"op": "start", "target": f"{TARGETS}:{target}", "ranks": ranks})

    def tell(self, command: object) -> None:
        assert self.process.stdin is not None
        text = command if isinstance(command, str) else json.dumps(command)
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, event: str) -> dict[str, Any]:
        """The next event of this name; others before it are dropped."""
        for heard in self.events():
            if heard["event"] == event:
                return heard
        raise AssertionError(f"the agent ended before it said {event}")

    def events(self) -> Iterator[dict[str, Any]]:
        while (event := self._events.get(timeout=TIMEOUT_S)) is not None:
            yield event

    def until_done(self) -> list[dict[str, Any]]:
        heard = []
        for event in self.events():
            heard.append(event)
            if event["event"] == "done":
                return heard
        raise AssertionError(f"the agent ended before it was done: {heard}")

    def close(self) -> int:
        """Ends the agent as a launcher does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_S)
