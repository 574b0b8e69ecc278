"""Nodes that are machines of a Ray cluster; see cluster.nodes.Nodes. Nothing of them is limited."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cluster.errors import HostError, NodeError
from cluster.nodes import Node, NodeFacts, NodeProcess
from cluster.rayhosts.process import RayProcess
from cluster.rayhosts.relay import DriverError, Relay
from cluster.topology import pinned_congestion_control

ANSWER_S = 20.0


@dataclass(frozen=True)
class Hosted:
    """A node, the number of its actor, and what the actor told of it."""

    node: Node
    actor: int
    facts: Mapping[str, Any]


class RayNodes:
    """The nodes of one placement group, through the driver that holds it."""

    def __init__(self, relay: Relay, hosted: Sequence[Hosted]) -> None:
        self._relay = relay
        self._hosted = {each.node.name: each for each in hosted}
        self._keys = itertools.count()

    @property
    def python(self) -> str:
        """Each node's own: the interpreter that its Ray runs with."""
        return "python"

    @property
    def user(self) -> tuple[int, int]:
        return os.geteuid(), os.getegid()

    @property
    def project(self) -> None:
        return None

    @property
    def shares_files(self) -> bool:
        return False

    def use_packages(self) -> None:
        """Programs import this project's packages from where each node has them."""
        for each in self._hosted.values():
            self._ask(each.node, "use", each.facts["folder"])

    def list(self) -> tuple[Node, ...]:
        return tuple(each.node for each in self._hosted.values())

    def require_visible(self, path: Path, *, writable: bool = False) -> None:
        for node in self.list():
            if fault := self._ask(node, "sees", str(path), writable):
                raise HostError(
                    f"{path} {fault} on {node.name} ({node.address})",
                    "each machine of a real cluster has files of its own",
                    ("put it there under the same path, on every node", "use a shared folder"),
                )

    def exec(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> NodeProcess:
        key = f"{argv[0]} {next(self._keys)}"
        self._ask(node, "start", key, list(argv), dict(env or {}), cwd)

        def call(method: str, *args: Any) -> Any:
            return self._call(node, method, *args)

        return RayProcess(call, key, _lost(node), stderr)

    def facts(self, node: Node) -> NodeFacts:
        told = self._hosted[node.name].facts
        routes = [route for route in told["routes"] if route.get("dev") == node.interface]
        return NodeFacts(
            kernel=told["kernel"],
            boot_id=told["boot_id"],
            cores=told["cores"],
            memory_bytes=told["memory_bytes"],
            python=told["python"],
            congestion_control=pinned_congestion_control(routes),
        )

    def software(self, node: Node) -> dict[str, str | None]:
        """Versions of python, torch, ray and ddplab on a node, and its host name."""
        told = self._hosted[node.name].facts
        return {name: told[name] for name in ("host", "python", "torch", "ray", "ddplab")}

    def _ask(self, node: Node, method: str, *args: Any) -> Any:
        try:
            return self._call(node, method, *args, timeout_s=ANSWER_S)
        except DriverError as exc:
            rule = "a program on a node of Ray ends with its actor, and with the driver"
            raise NodeError(_lost(node), rule, seen=str(exc)) from exc

    def _call(self, node: Node, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        actor = self._hosted[node.name].actor
        return self._relay.ask("call", timeout_s, node=actor, method=method, args=args)


def _lost(node: Node) -> str:
    return f"the Ray actor on {node.name} ({node.address}) does not answer"
