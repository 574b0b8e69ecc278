"""The two protocols of a backend, and what a backend is.

`Nodes` runs programs in nodes; `Shapeable` also makes the nodes and limits their links. Real
machines are `Nodes` only. Nothing here knows how a node is made; `cluster.backends` registers who
does.

Both protocols hold for a client that can only be started and killed from outside (`nsenter`,
`docker exec -i`): killing the client does not reach the program in the node. So every program
that is run in a node must take the end of its standard input as its order to stop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from cluster.spec import ClusterSpec, LinksSpec


@dataclass(frozen=True)
class Node:
    """One node: its name, its number, and its fabric address on its fabric NIC."""

    name: str
    index: int
    address: str
    interface: str


@dataclass(frozen=True)
class NodeFacts:
    """What a node says about itself; goes into run.json."""

    kernel: str
    boot_id: str
    cores: int
    memory_bytes: int
    python: str
    congestion_control: str | None
    """What the route to the fabric is pinned to, as the kernel reads it back."""

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


class NodeProcess(Protocol):
    """The client of a program that runs in a node; subprocess.Popen is one."""

    @property
    def pid(self) -> int:
        """The client's own process id, on this machine."""

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None:
        """None where the caller gave a file for it."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """Ends the client only; the program in the node ends as its standard input closes."""


class Nodes(Protocol):
    """Machines that run programs and share a fabric."""

    @property
    def python(self) -> str:
        """The interpreter in every node that can import this project's packages."""

    def list(self) -> tuple[Node, ...]:
        """All nodes, by number."""

    def exec(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> NodeProcess:
        """Starts a program in a node, in a session of its own (Ctrl-C does not reach it).

        `env` is added to the node's environment. Standard input and output are pipes, standard
        error is a pipe too unless a file is given. Raises NodeError when the node is gone.
        """

    def facts(self, node: Node) -> NodeFacts:
        """What the node is made of."""


class Shapeable(Nodes, Protocol):
    """Nodes that this backend makes, and whose links it limits."""

    def up(self, spec: ClusterSpec) -> None:
        """Makes the nodes and their links, still unlimited, or leaves nothing.

        Until `keep` is called they end with this process, however it ends.
        """

    def keep(self) -> None:
        """From here on the nodes outlive this process."""

    def shape(self, node: Node, links: LinksSpec) -> None:
        """Limits a node's links and reads the limits back. Raises ShapingError.

        A limit that is there is changed in place; what holds already is not touched.
        """

    def shape_plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        """The exact commands with which `shape` would change the node's links now."""

    def limits(self, node: Node) -> Mapping[str, int | None]:
        """Bits per second `out`, `in` and `inside` are limited to, read back; None: not limited."""

    def down(self) -> None:
        """Removes everything that `up` made. Does nothing where nothing is left."""

    def save(self) -> dict[str, Any]:
        """Plain data from which `attach` finds these nodes again."""


@dataclass(frozen=True)
class Backend:
    """How labs of one kind are made and found again.

    `create(directory, privilege)`: `directory` is the lab's own, for sockets and logs.
    `attach(directory, saved)` raises NoLab when what was saved is no longer there.
    `plan(spec)`: the exact commands that `up` would run inside the lab.
    """

    name: str
    summary: str
    create: Callable[[Path, str], Shapeable]
    attach: Callable[[Path, Mapping[str, Any]], Shapeable]
    plan: Callable[[ClusterSpec], tuple[str, ...]]
