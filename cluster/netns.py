"""The netns backend: nodes are network namespaces inside one holder process.

Nothing of this machine's own network or firewall is touched, and nothing outlives the holder.
"""

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import IO, Any

from cluster import holder as holder_script
from cluster.batch import run_batch
from cluster.errors import ClusterError, HostError, NodeError, NoLab
from cluster.holding import Holder, boot_id, search_path, start_holder, tool
from cluster.limiter import Limiter
from cluster.nodes import Backend, Fit, Node, NodeFacts, NodeProcess, Place
from cluster.spec import ClusterSpec, LinksSpec
from cluster.topology import (
    FabricNetwork,
    limit_commands,
    pinned_congestion_control,
    require_pinned,
    route_command,
    side_device,
    topology_commands,
)

PROJECT = Path(__file__).resolve().parent.parent


class NetnsNodes:
    """Nodes in one holder; see cluster.nodes.Shapeable."""

    def __init__(
        self,
        directory: Path,
        privilege: str = "none",
        network: FabricNetwork | None = None,
        holder: Holder | None = None,
        nodes: tuple[Node, ...] = (),
    ) -> None:
        self._directory = directory
        self._privilege = privilege
        self._network = network or FabricNetwork()
        self._holder = holder
        self._nodes = nodes
        self._tie: socket.socket | None = None
        self._limiter = Limiter(lambda _, commands: self._run(commands), side_device)

    @property
    def python(self) -> str:
        return sys.executable

    @property
    def user(self) -> tuple[int, int]:
        return os.geteuid(), os.getegid()

    @property
    def project(self) -> str:
        return str(PROJECT)

    @property
    def shares_files(self) -> bool:
        return True

    @property
    def monitoring(self) -> None:
        return None  # what watches is containers

    def list(self) -> tuple[Node, ...]:
        return self._nodes

    def require_visible(self, path: Path, *, writable: bool = False) -> None:
        del writable  # what this user may write, a rank may
        if path.is_relative_to("/run") or path.is_relative_to("/dev/shm"):
            raise HostError(
                f"{path} cannot be seen inside the lab",
                "a lab has its own /run and /dev/shm",
                "take another place, such as your home directory",
            )

    def up(self, spec: ClusterSpec) -> None:
        for name in ("ip", "tc", "mount", "nsenter", "setpriv"):
            tool(name)
        for path in (Path(sys.executable), PROJECT, Path.cwd()):
            self.require_visible(path)
        _require_no_limits(spec)
        try:
            self._holder, self._tie = start_holder(self._directory, self._privilege)
            self._run(topology_commands(spec, self._network, _speaks_ipv6()))
            self._nodes = self._network.nodes(spec)
            answers = self._run([route_command(node, self._network) for node in self._nodes])
            for node, answer in zip(self._nodes, answers, strict=True):
                require_pinned(node, json.loads(answer))
        except BaseException:
            self.down()
            raise

    def keep(self) -> None:
        if self._tie is not None:
            self._tie.sendall(holder_script.KEEP)
            self._tie.close()
            self._tie = None

    def shape(self, node: Node, links: LinksSpec) -> None:
        self._limiter.shape(node, links)

    def shape_plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        return self._limiter.plan(node, links)

    def limits(self, node: Node) -> Mapping[str, int | None]:
        return self._limiter.limits(node)

    def down(self) -> None:
        if self._tie is not None:
            self._tie.close()
            self._tie = None
        if self._holder is not None:
            self._holder.end()
        self._holder, self._nodes = None, ()

    def exec(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> NodeProcess:
        settings = [f"{name}={value}" for name, value in self._environment(env).items()]
        place = [f"--chdir={cwd or Path.cwd()}"]
        # a program that was stopped goes on when we or its client end, and finds its input ended
        woken = [tool("setpriv"), "--pdeathsig", "CONT"]
        command = [*woken, tool("ip"), "netns", "exec", node.name, "env", *place, *settings, *argv]
        return subprocess.Popen(
            [*woken, *self._alive().enter(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if stderr is None else stderr,
            start_new_session=True,
        )

    def facts(self, node: Node) -> NodeFacts:
        routes = json.loads(self._run([route_command(node, self._network)])[0])
        return NodeFacts(
            kernel=platform.release(),
            boot_id=boot_id(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            python=platform.python_version(),
            congestion_control=pinned_congestion_control(routes),
        )

    def save(self) -> dict[str, Any]:
        nodes = [[node.name, node.index, node.address, node.interface] for node in self._nodes]
        return {
            "holder": self._alive().to_json(),
            "nodes": nodes,
            "subnet": str(self._network.subnet),
            "privilege": self._privilege,
        }

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        paths = [str(PROJECT), os.environ.get("PYTHONPATH", "")]
        return {
            "PATH": search_path(),
            "TMPDIR": holder_script.TEMPORARY,
            "PYTHONSAFEPATH": "1",  # a folder called jobs or cluster in `cwd` must not be ours
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            **(env or {}),
        }

    def _alive(self) -> Holder:
        if self._holder is None or not self._holder.alive:
            raise NodeError(
                "the lab is gone: the process it lived in has ended", None, "make cluster-up"
            )
        return self._holder

    def _run(self, commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
        return run_batch(self._alive().enter(["sh"]), commands)


def _create(place: Place) -> NetnsNodes:
    _require_no_monitoring(place)
    return NetnsNodes(place.directory, place.making.privilege, _network(place))


def _require_no_monitoring(place: Place) -> None:
    if place.making.monitoring:
        raise ClusterError(
            "Prometheus and Grafana are brought up beside nodes that are containers only",
            "a lab of network namespaces has no containers",
            ("MONITORING=1 BACKEND=compose", "point a Prometheus of yours at the exporter"),
        )


def _require_no_limits(spec: ClusterSpec) -> None:
    if words := spec.limits.describe():
        raise HostError(
            f"nodes of network namespaces cannot be limited to {words}",
            "limits are held by containers; nothing that is asked for is left out",
            ("BACKEND=compose", "a cluster file without limits"),
        )


def _network(place: Place) -> FabricNetwork:
    subnet = place.making.subnet
    return FabricNetwork() if subnet is None else FabricNetwork(subnet)


def _attach(directory: Path, saved: Mapping[str, Any]) -> NetnsNodes:
    holder = Holder.from_json(saved["holder"])
    if not holder.alive:
        raise NoLab("the process it lived in has ended")
    nodes = tuple(Node(*node) for node in saved["nodes"])
    network = FabricNetwork(IPv4Network(saved["subnet"]))
    return NetnsNodes(directory, saved["privilege"], network, holder, nodes)


def _speaks_ipv6() -> bool:
    """Not where the kernel was started with ipv6.disable=1, for one."""
    return Path("/proc/net/if_inet6").exists()


def _plan(spec: ClusterSpec, place: Place) -> tuple[str, ...]:
    _require_no_monitoring(place)
    _require_no_limits(spec)
    network = _network(place)
    commands = [*topology_commands(spec, network, _speaks_ipv6()), *limit_commands(spec, network)]
    return tuple(shlex.join(command) for command in commands)


NETNS = Backend(
    name="netns",
    summary="network namespaces on this machine; no Docker, no root",
    fit=lambda: Fit(True, "network namespaces need no Docker"),
    create=_create,
    prepare=lambda place, timed: None,  # noqa: ARG005
    attach=_attach,
    plan=_plan,
    clear=lambda directory: None,  # noqa: ARG005 - the kernel leaves nothing of a dead holder
)
