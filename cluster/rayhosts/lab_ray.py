"""A real Ray cluster inside a lab: its head on the first node, a worker on every other one.

Brought up and down here, by what runs in the nodes (`cluster.rayhosts.supervisor`). It outlives
the command, ends with the lab, and uses nothing of this machine's own Ray, if there is one.
"""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from cluster.errors import NodeError, NoRay, RayError
from cluster.kept import Lab
from cluster.nodes import Node, NodeProcess
from cluster.rayhosts.kept import (
    RayKept,
    forget_cluster,
    make_word,
    read_cluster,
    require_cluster,
    write_cluster,
)
from cluster.state import LabDirectory

MODULE = "cluster.rayhosts.supervisor"
HEAD_PORT = 6379
PORTS: Mapping[str, int] = {
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "runtime-env-agent-port": 6382,
    "dashboard-agent-listen-port": 6383,
    "dashboard-agent-grpc-port": 6384,
    "metrics-export-port": 6385,
    "min-worker-port": 10002,
    "max-worker-port": 10999,
}
"""All below those that the kernel hands out, from which ranks take theirs."""
SETTINGS = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}
"""What is left of a cluster ends so long after its head."""
OBJECT_STORE_BYTES = 80 << 20
START_S = 60.0
STOP_S = 20.0


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster in a lab."""

    lab: Lab
    address: str
    """HOST:PORT of its head, inside the lab."""
    ray: str
    """Its version."""
    created_at: float
    already_up: bool = False


def ray_up(lab: Lab) -> RayCluster:
    """Starts Ray on all nodes of the lab, or leaves nothing. Raises RayError.

    One that is up is returned as it is; of one that is no longer whole the rest is ended first.
    """
    directory = LabDirectory.of(lab.name)
    with directory.locked():
        kept = read_cluster(lab)
        if kept and not _failing(lab, kept, "alive"):
            return RayCluster(lab, kept.address, kept.ray, kept.created_at, already_up=True)
        if kept:
            _stop(lab, kept)
            forget_cluster(lab)
        kept = _start(lab)
        return RayCluster(lab, kept.address, kept.ray, kept.created_at)


def ray_down(lab: Lab) -> RayCluster:
    """Ends Ray on all nodes, and what it runs; returns what it was. Raises NoRay where none is."""
    with LabDirectory.of(lab.name).locked():
        kept = read_cluster(lab)
        if kept is None:
            raise NoRay(
                f'there is no Ray cluster in lab "{lab.name}"',
                "only what was brought up is taken down",
                make_word("ray-up", lab.name),
            )
        _stop(lab, kept)
        forget_cluster(lab)
        return RayCluster(lab, kept.address, kept.ray, kept.created_at)


def _start(lab: Lab) -> RayKept:
    head, *others = lab.nodes.list()
    address = f"{head.address}:{HEAD_PORT}"
    with ExitStack() as stack:
        first = stack.enter_context(_Starting(lab, head, ["--head", f"--port={HEAD_PORT}"]))
        ray = _version(lab, head)
        first.wait()
        rest = [
            stack.enter_context(_Starting(lab, node, [f"--address={address}"])) for node in others
        ]
        for each in rest:
            each.wait()
        kept = RayKept(
            address=address,
            nodes={each.node.name: each.pid for each in (first, *rest)},
            ray=ray,
            created_at=time.time(),
            lab_created_at=lab.created_at,
        )
        write_cluster(lab, kept)
        for each in (first, *rest):
            each.keep()
        return kept


class _Starting:
    """Ray on one node, gone when the block ends without `keep`."""

    def __init__(self, lab: Lab, node: Node, words: Sequence[str]) -> None:
        self.node = node
        self.pid = (0, 0)
        cpus = max(lab.nodes.facts(node).cores, lab.spec.ranks_per_node)
        options = [
            *words,
            f"--node-ip-address={node.address}",
            *(f"--{name}={port}" for name, port in PORTS.items()),
            f"--num-cpus={cpus}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-log-monitor=false",
            "--disable-usage-stats",
        ]
        if "--head" in words:
            options.append("--include-dashboard=false")
        argv = [lab.nodes.python, "-m", MODULE, "start", f"ray-{node.name}", *options]
        self._process = lab.nodes.exec(node, argv, env=SETTINGS)

    def __enter__(self) -> "_Starting":
        return self

    def __exit__(self, *_: object) -> None:
        _end_input(self._process)
        self._process.wait(STOP_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()

    def wait(self) -> None:
        assert self._process.stdout and self._process.stderr
        line = self._process.stdout.readline()
        told = json.loads(line) if line.strip() else {"failed": []}
        if "pid" in told:
            self.pid = (told["pid"], told["ticks"])
            return
        _end_input(self._process)
        said = [*told["failed"], *self._process.stderr.read().decode().strip().splitlines()[-1:]]
        raise RayError(
            f"Ray did not start on {self.node.name}",
            "a Ray cluster of a lab runs on all its nodes, or on none",
            seen="\n".join(said) or "it ended without a word",
        )

    def keep(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"keep\n")
        self._process.stdin.flush()


def _end_input(process: NodeProcess) -> None:
    with suppress(OSError):
        if process.stdin:
            process.stdin.close()


def _version(lab: Lab, node: Node) -> str:
    script = "import importlib.metadata as m; print(m.version('ray'))"
    status, out = _said(lab, node, [lab.nodes.python, "-c", script])
    if status:
        raise RayError(
            f"ray is not installed in {node.name}",
            "Ray is an extra of this project",
            'pip install "ddplab[ray]"',
        )
    return out.strip()


def _said(lab: Lab, node: Node, argv: Sequence[str], timeout_s: float = START_S) -> tuple[int, str]:
    process = lab.nodes.exec(node, argv)
    _end_input(process)
    assert process.stdout and process.stderr
    with process.stdout, process.stderr:
        out = process.stdout.read().decode()
        return process.wait(timeout_s), out


def require_whole(lab: Lab) -> RayKept:
    """The lab's Ray cluster. Raises NoRay where it has none, or Ray has ended on a node."""
    kept = require_cluster(lab)
    if lost := _failing(lab, kept, "alive"):
        raise NoRay(
            f"Ray has ended on {', '.join(lost)}",
            "the Ray cluster of a lab is used as a whole",
            make_word("ray-up", lab.name),
        )
    return kept


def _stop(lab: Lab, kept: RayKept) -> None:
    if left := _failing(lab, kept, "stop"):
        raise NodeError(
            f"Ray on {', '.join(left)} was told to end and is still there",
            f"waited {STOP_S:g} s for it",
            make_word("cluster-down", lab.name),
        )


def _failing(lab: Lab, kept: RayKept, word: str) -> list[str]:
    """The nodes on which a word of the supervisor's ends with another status than 0."""

    def ask(node: Node) -> int:
        pid, ticks = kept.nodes.get(node.name, (0, 0))
        argv = [lab.nodes.python, "-m", MODULE, word, str(pid), str(ticks)]
        return _said(lab, node, argv)[0]

    nodes = lab.nodes.list()
    with ThreadPoolExecutor(len(nodes)) as pool:
        statuses = list(pool.map(ask, nodes))
    return [node.name for node, status in zip(nodes, statuses, strict=True) if status]
