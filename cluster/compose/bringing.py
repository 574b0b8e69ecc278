"""From a specification to nodes: containers are made, or taken over, and each is waited for."""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from cluster.compose.devices import ADDRESSES, HELD, IFB, fabric_nic
from cluster.compose.file import BY_HAND, PROJECT, Filling
from cluster.compose.image import image_name
from cluster.compose.inside import as_root, readable, require_readable
from cluster.compose.limits import require_limits
from cluster.compose.monitoring import choose_management
from cluster.compose.project import Project, is_by_hand
from cluster.compose.subnets import choose_subnet, machine_routes, taken_subnets
from cluster.errors import HostError, LabExists, NodeError
from cluster.nodes import Making, Node
from cluster.spec import ClusterSpec
from cluster.topology import require_pinned

ATTEMPTS = 3
"""Another command may take the subnet or port that was found free."""
_WAIT = f"i=0; until [ -s {HELD} ]; do sleep 0.05; i=$((i+1)); [ $i -lt 400 ] || exit 1; done"


@dataclass(frozen=True)
class Brought:
    """Nodes that are there; `containers` are their ids and start times, by node."""

    subnet: IPv4Network
    nodes: tuple[Node, ...]
    containers: tuple[tuple[str, str], ...]


def bring(project: Project, making: Making, spec: ClusterSpec) -> Brought:
    """Makes the nodes of a lab; those that a person started by hand are taken as they are."""
    if is_by_hand(found := project.nodes()):
        project.home = BY_HAND
        return _wait_for(project, _subnet_by_hand(project, making, spec, found), spec, found)
    project.claim()
    subnet = _made(project, making, spec)
    return _wait_for(project, subnet, spec, project.nodes())


def _made(project: Project, making: Making, spec: ClusterSpec) -> IPv4Network:
    """Makes them, and returns their subnet."""
    require_readable(PROJECT)
    runs, work = (making.runs or Path("runs")).resolve(), Path.cwd()
    runs.mkdir(parents=True, exist_ok=True)
    for attempt in range(ATTEMPTS):
        taken = taken_subnets(project.engine.networks(), machine_routes())
        subnet = choose_subnet(making.subnet, spec.nodes, taken)
        filling = Filling(
            spec=spec,
            home=Path(project.home),
            image=image_name(project.engine),
            subnet=subnet,
            runs=runs,
            work=work if readable(work) else PROJECT,
            management=choose_management(taken, subnet, os.environ) if making.monitoring else None,
        )
        try:
            project.bring_up(filling)
            break
        except HostError:
            project.remove()
            if not project.was_overtaken() or attempt == ATTEMPTS - 1:
                raise
    return subnet


def _subnet_by_hand(
    project: Project, making: Making, spec: ClusterSpec, found: Sequence[Mapping[str, Any]]
) -> IPv4Network:
    """The subnet of nodes that a person started. Raises LabExists where they are others."""
    environ = dict(word.partition("=")[::2] for word in found[0]["Config"]["Env"])
    held = len(found), environ.get("DDPLAB_MTU", ""), environ.get("DDPLAB_SUBNET", "")
    asked = spec.nodes, str(_widest_mtu(spec)), str(making.subnet or held[2])
    if held != asked:
        raise LabExists(
            f'nodes of project "{project.name}" were started by hand, and are others',
            "nodes that are there are taken as they are",
            (f"docker compose --project-name {project.name} down", "LAB=name"),
            seen="up: {} nodes, mtu {}, subnet {}; asked: {}, {}, {}".format(*held, *asked),
        )
    try:
        return IPv4Network(held[2])
    except ValueError as exc:
        fault = HostError("the addresses of these nodes are no subnet", seen=held[2])
        raise _not_limited(project, str(found[0]["Id"])) or fault from exc


def _widest_mtu(spec: ClusterSpec) -> int:
    return max(spec.links_of(name).inter_node.mtu for name in spec.node_names)


def _wait_for(
    project: Project,
    subnet: IPv4Network,
    spec: ClusterSpec,
    found: Sequence[Mapping[str, Any]],
) -> Brought:
    """The nodes behind these containers, once they have limited themselves."""
    require_limits(spec.limits, found)
    containers = tuple((str(it["Id"]), str(it["State"]["StartedAt"])) for it in found)
    with ThreadPoolExecutor(max(1, len(found))) as pool:
        waiting = partial(_node, project, subnet, spec)
        nodes = tuple(pool.map(waiting, spec.node_names, [each for each, _ in containers]))
    return Brought(subnet, nodes, containers)


def _node(
    project: Project, subnet: IPv4Network, spec: ClusterSpec, name: str, identity: str
) -> Node:
    routes = ["ip", "-j", "route", "show", str(subnet)]
    try:
        waited = as_root(project.engine, identity, [["sh", "-c", _WAIT], ADDRESSES, routes])
    except NodeError as exc:
        raise _not_limited(project, identity) or exc from exc
    nic, address = fabric_nic(waited[1], subnet)
    node = Node(name, int(name.removeprefix("node")), address, nic)
    require_pinned(node, json.loads(waited[2]))
    mtu = spec.links_of(name).inter_node.mtu
    if mtu != _widest_mtu(spec):
        words = [["ip", "link", "set", "dev", it, "mtu", str(mtu)] for it in (nic, IFB)]
        as_root(project.engine, identity, words)
    return node


def _not_limited(project: Project, identity: str) -> HostError | None:
    """Why a container ended that should have limited its links."""
    try:
        told = json.loads(project.engine.log_tail(identity).splitlines()[-1])
        why = told.get("rule"), told.get("fix")
        return HostError(told["message"], *why, seen=told.get("seen"))
    except (IndexError, KeyError, TypeError, ValueError):
        return None
