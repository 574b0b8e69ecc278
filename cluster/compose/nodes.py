"""Nodes that are containers of one Compose project; see cluster.nodes.Shapeable."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cluster.compose.bringing import Brought, bring
from cluster.compose.devices import NOTE_HELD, side_device
from cluster.compose.file import BY_HAND, PROJECT
from cluster.compose.inside import as_root, rank_user, start
from cluster.compose.monitoring import find_monitoring
from cluster.compose.project import Project
from cluster.errors import HostError, NodeError
from cluster.limiter import Limiter
from cluster.nodes import Making, Monitoring, Node, NodeFacts, NodeProcess
from cluster.spec import ClusterSpec, LinksSpec
from cluster.topology import pinned_congestion_control

PYTHON = "/opt/ddplab/bin/python"
_FACTS = """
import json, os, platform
mem = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
print(json.dumps({"kernel": platform.release(), "boot_id":
open("/proc/sys/kernel/random/boot_id").read().strip(), "cores": len(os.sched_getaffinity(0)),
"memory_bytes": mem, "python": platform.python_version()}))
"""


class ComposeNodes:
    """The nodes of a project; `brought` is None before `up`, and after `down`."""

    def __init__(
        self,
        project: Project,
        making: Making = Making(),  # noqa: B008 - frozen
        brought: Brought | None = None,
    ) -> None:
        self._project, self._making, self._brought = project, making, brought
        self._kept = brought is not None
        self._limiter = Limiter(self._run, side_device, [NOTE_HELD])

    @property
    def python(self) -> str:
        return PYTHON

    @property
    def user(self) -> tuple[int, int]:
        return rank_user()

    @property
    def project(self) -> str:
        return str(PROJECT)

    @property
    def shares_files(self) -> bool:
        return True

    @property
    def monitoring(self) -> Monitoring | None:
        return find_monitoring(self._project.engine, self._project.name)

    def list(self) -> tuple[Node, ...]:
        return self._brought.nodes if self._brought else ()

    def require_visible(self, path: Path, *, writable: bool = False) -> None:
        seen = [
            mount["Source"]
            for mount in self._running(self.list()[0])["Mounts"]
            if mount["Source"] == mount["Destination"] and (mount["RW"] or not writable)
        ]
        places = (path.absolute(), path.resolve())  # where a link is, and where it leads
        if all(any(place.is_relative_to(folder) for folder in seen) for place in places):
            if writable:
                self._require_there(next(it for it in seen if path.resolve().is_relative_to(it)))
            return
        raise HostError(
            f"{path} cannot be {'written' if writable else 'seen'} inside the containers",
            "they see the project, the folder that make cluster-up was typed in, and its runs/",
            ("move it there", "make cluster-down, and make cluster-up where it is"),
        )

    def _require_there(self, folder: str) -> None:
        """Raises HostError where a folder that nodes write to was removed meanwhile."""
        (mounts,) = self._run(self.list()[0], [["cat", "/proc/self/mountinfo"]])
        if not is_mounted(folder, mounts):
            raise HostError(
                f"{folder} was removed or moved while the lab was up",
                "containers see the folder that was there as they were made, not a new one",
                "make cluster-down, and make cluster-up",
            )

    def up(self, spec: ClusterSpec) -> None:
        try:
            self._brought = bring(self._project, self._making, spec)
        except BaseException:
            self.down()
            raise

    def keep(self) -> None:
        self._project.keep()
        self._kept = True

    def down(self) -> None:
        if self._kept or self._project.home != BY_HAND:  # before `keep` those are still a person's
            self._project.remove()
        self._brought = None

    def save(self) -> dict[str, Any]:
        assert self._brought is not None
        return {
            "project": self._project.name,
            "home": self._project.home,
            "subnet": str(self._brought.subnet),
            "containers": self._brought.containers,
            "nodes": [[it.name, it.index, it.address, it.interface] for it in self.list()],
        }

    def exec(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> NodeProcess:
        identity = self._running(node)["Id"]
        return start(self._project.engine, identity, argv, env or {}, cwd, stderr)

    def facts(self, node: Node) -> NodeFacts:
        assert self._brought is not None
        routes = ["ip", "-j", "route", "show", str(self._brought.subnet)]
        told, held = self._run(node, [[PYTHON, "-I", "-S", "-c", _FACTS], routes])
        pinned = pinned_congestion_control(json.loads(held))
        return NodeFacts(**json.loads(told), congestion_control=pinned)

    def shape(self, node: Node, links: LinksSpec) -> None:
        self._limiter.shape(node, links)

    def shape_plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        return self._limiter.plan(node, links)

    def limits(self, node: Node) -> Mapping[str, int | None]:
        return self._limiter.limits(node)

    def _run(self, node: Node, commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
        return as_root(self._project.engine, self._running(node)["Id"], commands)

    def _running(self, node: Node) -> Mapping[str, Any]:
        """What the engine knows of a node's container. Raises NodeError where it has ended."""
        ending = "it was taken down"
        if self._brought is not None:
            identity, started = self._brought.containers[node.index]
            found = self._project.engine.container(identity)
            ending = how_ended(node, found, started) or ""
            if found and not ending:
                _require_awake(node, found)
                return found
        raise NodeError(f"the lab is gone: {ending}", None, "make cluster-up")


def is_mounted(folder: str, mounts: str) -> bool:
    """Whether a folder is still mounted, and still there, by the text of /proc/self/mountinfo.

    The kernel unmounts a folder that is removed outside, or marks what it was.
    """
    for letter in "\\ \t\n":
        folder = folder.replace(letter, f"\\{ord(letter):03o}")
    held = [words for line in mounts.splitlines() if (words := line.split())[4] == folder]
    return any(not words[3].endswith("//deleted") for words in held)


def how_ended(node: Node, found: Mapping[str, Any] | None, started: str) -> str | None:
    """What became of a node's container since it was made; None where it is as it was.

    `found` as the engine inspects it. One that left its network has lost its limits with its NIC.
    """
    if found is None or not found["State"]["Running"]:
        return f"the container of {node.name} has ended"
    if found["State"]["StartedAt"] != started:
        return f"the container of {node.name} was started again"
    networks = found["NetworkSettings"]["Networks"].values()
    if node.address not in [network["IPAddress"] for network in networks]:
        return f"the container of {node.name} was taken off its network"
    return None


def _require_awake(node: Node, found: Mapping[str, Any]) -> None:
    if found["State"]["Paused"]:
        name = str(found["Name"]).removeprefix("/")
        raise NodeError(
            f"{node.name} is paused",
            "nothing can be started in a container that is paused",
            (f"docker unpause {name}", "make cluster-down"),
        )
