"""Nodes of a lab that exist only as a list of what was asked of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cluster.nodes import Monitoring, Node, NodeFacts, NodeProcess
from cluster.spec import ClusterSpec, LinksSpec


class Recorder:
    """A backend's nodes that exist only as a list of what was asked for."""

    python = "python3"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.fails_at: str | None = None
        self.fault: BaseException = KeyboardInterrupt()
        self.alive = False

    def _say(self, word: str) -> None:
        self.said.append(word)
        if word == self.fails_at:
            raise self.fault

    @property
    def user(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def project(self) -> str:
        raise NotImplementedError

    @property
    def shares_files(self) -> bool:
        return True

    @property
    def monitoring(self) -> Monitoring | None:
        return None

    def require_visible(self, path: Path, *, writable: bool = False) -> None:
        raise NotImplementedError

    def list(self) -> tuple[Node, ...]:
        return tuple(Node(f"node{k}", k, f"198.18.0.{10 + k}", "fab0") for k in range(2))

    def exec(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> NodeProcess:
        raise NotImplementedError

    def facts(self, node: Node) -> NodeFacts:
        raise NotImplementedError

    def up(self, spec: ClusterSpec) -> None:
        del spec
        self.alive = True
        self._say("up")

    def keep(self) -> None:
        self._say("keep")

    def shape(self, node: Node, links: LinksSpec) -> None:
        del links
        self._say(f"shape {node.name}")

    def shape_plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        raise NotImplementedError

    def limits(self, node: Node) -> Mapping[str, int | None]:
        raise NotImplementedError

    def down(self) -> None:
        self.alive = False
        self.said.append("down")

    def save(self) -> dict[str, Any]:
        self._say("save")
        return {}
