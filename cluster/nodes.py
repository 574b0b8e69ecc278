"""The two protocols of a backend, and what a backend is.

`Nodes` runs programs in nodes; `Shapeable` also makes the nodes and limits their links. Real
machines are `Nodes` only. Nothing here knows how a node is made; `cluster.backends` registers who
does.

Both protocols hold for a client that can only be started and killed from outside (`nsenter`,
`docker exec -i`): killing the client does not reach the program in the node. So every program
that is run in a node must take the end of its standard input as its order to stop.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
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


@dataclass(frozen=True)
class Monitoring:
    """What watches a lab from beside its nodes."""

    gateway: IPv4Interface
    """Where it asks this machine for metrics: an address of this machine on its network."""
    pages: Mapping[str, str]
    """Addresses for a browser, by service: grafana, prometheus."""


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

    @property
    def user(self) -> tuple[int, int]:
        """The user and group that programs in the nodes run as, as this machine numbers them."""

    @property
    def project(self) -> str | None:
        """The folder in which programs in the nodes run; None: each node has one of its own."""

    @property
    def shares_files(self) -> bool:
        """Whether a path names the same file here and in every node."""

    def list(self) -> tuple[Node, ...]:
        """All nodes, by number."""

    def require_visible(self, path: Path, *, writable: bool = False) -> None:
        """Raises HostError where programs in the nodes do not find this file under this path."""

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

    @property
    def monitoring(self) -> Monitoring | None:
        """What watches these nodes; None where nothing was asked to."""

    def save(self) -> dict[str, Any]:
        """Plain data from which `attach` finds these nodes again."""


@dataclass(frozen=True)
class Making:
    """How a lab is made; what it is, says its specification."""

    backend: str = "auto"
    privilege: str = "none"
    subnet: IPv4Network | None = None
    """Addresses of the fabric; None: a part of 198.18.0.0/15 that is free."""
    runs: Path | None = None
    """The folder that ranks write to."""
    monitoring: bool = False
    """Whether Prometheus and Grafana are brought up beside the nodes."""


@dataclass(frozen=True)
class Place:
    """Where a lab is made: its name, and the directory of its own for sockets and logs."""

    name: str
    directory: Path
    making: Making = Making()


@dataclass(frozen=True)
class Fit:
    """Whether labs of a backend can be made on this machine, and what tells so."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Backend:
    """How labs of one kind are made and found again.

    `fit()` says in a moment whether this machine has what is needed. `create(place)` makes nothing
    yet. `prepare(place, timed)` makes what labs share, such as an image, inside of `timed()`, and
    does not enter it where that is there. `attach(directory, saved)` raises NoLab when what was
    saved is no longer there. `plan(spec, place)`: the exact commands that `up` would run.
    `clear(directory)` removes what a lab that is no longer whole left anywhere else, if anything.
    """

    name: str
    summary: str
    fit: Callable[[], Fit]
    create: Callable[[Place], Shapeable]
    prepare: Callable[[Place, Callable[[], AbstractContextManager[None]]], None]
    attach: Callable[[Path, Mapping[str, Any]], Shapeable]
    plan: Callable[[ClusterSpec, Place], tuple[str, ...]]
    clear: Callable[[Path], None]
