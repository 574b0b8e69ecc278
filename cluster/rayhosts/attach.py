"""A Ray cluster as a site for jobs: attached to by its address, its nodes placed, named, compared.

Owns the order of things and the words of errors; `driver` does them, and `placing`, `fabric` and
`differences` decide. Nothing is discovered: an address is given, or is that of a lab's own Ray.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import NoRay, NotPlaced, RayError
from cluster.kept import Lab
from cluster.lab import open_lab
from cluster.nodes import Node, NodeProcess
from cluster.rayhosts.differences import require_same_software
from cluster.rayhosts.fabric import Nics, resolve_fabric
from cluster.rayhosts.kept import make_word
from cluster.rayhosts.lab_ray import require_whole
from cluster.rayhosts.nodes import Hosted, RayNodes
from cluster.rayhosts.placing import (
    SPREAD,
    Machine,
    Placing,
    chosen_addresses,
    gpus_per_node,
    not_placed,
    order_key,
    plan_placing,
    working,
)
from cluster.rayhosts.relay import DriverError, Relay
from cluster.site import Attached
from cluster.spec import ClusterSpec

BACKEND = "ray"
MODULE = "cluster.rayhosts.driver"
ATTACH_S = 30.0
PLACE_S = 20.0
"""How long Ray may take to find room."""
START_S = 90.0
PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RayAsked:
    """Which Ray cluster, and how much of it."""

    lab: str = "default"
    """The lab whose own Ray cluster is meant, where no address is given."""
    address: str | None = None
    """HOST:PORT of a cluster's head."""
    fabric: str | None = None
    """A NIC or a subnet; None: the NICs that Ray itself uses."""
    nodes: int | None = None
    """None: all that are alive."""
    ranks_per_node: int | None = None
    """None: the lab's, or as many as every node has GPUs."""
    strategy: str = SPREAD
    """`spread`, `pack`, or the machines by address, in the order of nodes: `10.0.0.4,10.0.0.5`."""


@contextmanager
def attached(asked: RayAsked) -> Iterator[Attached]:
    """The cluster, with an actor of ours on each node until the block ends.

    Raises RayError, and NoLab where the lab is not up. Leaving ends programs, actors and the
    placement group; the cluster stays.
    """
    addresses = chosen_addresses(asked.strategy)
    lab = open_lab(asked.lab) if asked.address is None else None
    address = _given(asked.address) if lab is None else require_whole(lab).address
    relay = Relay(_driver_on(lab))
    try:
        told = _attach(relay, address, lab)
        machines = [Machine.from_json(each) for each in told["nodes"]]
        size, placing = _planned(asked, addresses, machines, lab)
        hosted = _place(relay, placing, machines)
        yield Attached(
            name=address if lab is None else lab.name,
            spec=_spec(lab, size, len(hosted)),
            backend=BACKEND,
            nodes=_nodes(relay, asked.fabric, hosted, lab, told["here"]),
            created_at=time.time(),
            underlay=lab,
        )
    finally:
        relay.close()


def _given(address: str | None) -> str:
    """The address of a head. Raises RayError for what Ray itself would make something else of."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal() or "/" in host or host.split() != [host]:
        raise RayError(
            f"{address!r} is no address of a Ray cluster",
            "it is given as HOST:PORT of its head; none is looked for, and Ray Client is not used",
            "ADDRESS=10.0.0.4:6379, as `ray start --head` printed it",
        )
    return f"{host}:{port}"


def _driver_on(lab: Lab | None) -> NodeProcess:
    """The driver runs where it reaches the cluster: in a node of the lab, or on this machine."""
    if lab is not None:
        return lab.nodes.exec(lab.nodes.list()[0], [lab.nodes.python, "-m", MODULE])
    pipe = subprocess.PIPE
    paths = [str(PROJECT), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, **own},
        start_new_session=True,
    )


def _attach(relay: Relay, address: str, lab: Lab | None) -> Mapping[str, Any]:
    own = None if lab is None else lab.nodes.list()[0].address
    try:
        told: Mapping[str, Any] = relay.ask("attach", ATTACH_S, address=address, node_address=own)
    except DriverError as exc:
        raise _not_attached(exc, address, lab) from exc
    return told


def _not_attached(exc: DriverError, address: str, lab: Lab | None) -> RayError:
    if exc.kind == "no_ray":
        where = "here" if lab is None else "in the nodes of the lab"
        rule = "Ray is an extra of this project"
        return RayError(f"ray is not installed {where}", rule, 'pip install "ddplab[ray]"')
    fixes = [
        "give the address that `ray start --head` printed on its head",
        f"make this machine a node of it: ray start --address={address}",
    ]
    if lab is not None:
        fixes = [make_word("ray-up", lab.name)]
    what = "no Ray cluster answers" if exc.kind == "unreachable" else "cannot attach to Ray"
    rule = "a job is driven from a machine that is a node of the cluster"
    return NoRay(f"{what} at {address}", rule, fixes, seen=str(exc) or None)


def _planned(
    asked: RayAsked,
    addresses: tuple[str, ...] | None,
    machines: Sequence[Machine],
    lab: Lab | None,
) -> tuple[int, Placing]:
    """Ranks per node, and what is asked of Ray."""
    pool = working(machines)
    if lab is not None:
        addresses = _of_lab(asked, addresses, lab)
    nodes = asked.nodes or len(addresses or pool)
    if addresses is not None and len(addresses) != nodes:
        raise RayError(
            f"{nodes} nodes are asked for and {len(addresses)} machines are named",
            "a node for each machine that the strategy names",
            "leave one of the two out",
        )
    named = [it for it in pool if addresses is None or it.address in addresses]
    size = asked.ranks_per_node or (lab.spec.ranks_per_node if lab else gpus_per_node(named))
    if size is None:
        raise RayError(
            "how many ranks are meant on each node?",
            "without a number it is that of the GPUs, where all nodes have equally many",
            "--ranks-per-node 2",
        )
    return size, plan_placing(pool, nodes, size, asked.strategy, addresses)


def _of_lab(asked: RayAsked, addresses: tuple[str, ...] | None, lab: Lab) -> tuple[str, ...] | None:
    """In a lab that a job does not fill its first nodes are meant, so that links are as it says."""
    own = [node.address for node in lab.nodes.list()]
    if addresses is None and asked.strategy == SPREAD and (asked.nodes or 0) <= len(own):
        addresses = tuple(own[: asked.nodes])
    if addresses is None:
        return None
    if lab.spec.overrides and {*addresses} != {*own[: len(addresses)]}:
        raise RayError(
            "nodes of this lab have links of their own, and not its first ones are asked for",
            "figures are held against the links of node0, node1, ...",
            f"--strategy {','.join(own[: len(addresses)])}",
        )
    return addresses


def _place(
    relay: Relay, placing: Placing, machines: Sequence[Machine]
) -> list[tuple[str, int, Mapping[str, Any]]]:
    """Ray's address of each node, the number of its actor, and its facts; in the order of nodes."""
    by_id = {machine.id: machine.address for machine in machines}
    order = {
        "bundles": placing.bundles,
        "strategy": placing.strategy,
        "limit_s": PLACE_S,
    }
    try:
        told = relay.ask("place", PLACE_S + START_S, **order)
    except DriverError as exc:
        if exc.kind == "not_placed":
            now = [Machine.from_json(each) for each in json.loads(str(exc))]
            raise not_placed(placing, now, PLACE_S) from exc
        if exc.kind == "no_actor":
            number, words = json.loads(str(exc))
            which = placing.addresses[number] if placing.addresses else f"bundle {number}"
            rule = "a job needs an actor on each of its nodes"
            raise NotPlaced(f"no actor started on {which}", rule, seen=words) from exc
        raise RayError("the nodes could not be made ready", seen=str(exc)) from exc
    placed = [(by_id.get(it["id"], it["host"]), at, it) for at, it in enumerate(told)]
    if placing.addresses is None:
        placed.sort(key=lambda it: (order_key(it[0]), it[1]))
    return placed


def _nodes(
    relay: Relay,
    fabric: str | None,
    placed: Sequence[tuple[str, int, Mapping[str, Any]]],
    lab: Lab | None,
    here: Mapping[str, Any],
) -> RayNodes:
    """Named, compared, each with its place on the fabric; actors know what programs import."""
    own = {node.address: node.name for node in lab.nodes.list()} if lab else {}
    names = [own.get(address, "") for address, _, _ in placed]
    if not all(names) or len(set(names)) < len(names):
        names = [f"node{at}" for at in range(len(placed))]
    labels = [f"{name} ({address})" for name, (address, _, _) in zip(names, placed, strict=True)]
    facts = [told for _, _, told in placed]
    require_same_software(list(zip(labels, facts, strict=True)), here)
    nics = [
        Nics(label, address, tuple((it[0], it[1]) for it in told["nics"]))
        for label, (address, _, told) in zip(labels, placed, strict=True)
    ]
    places = resolve_fabric(fabric, nics)
    hosted = []
    for at, (_, actor, told) in enumerate(placed):
        interface, address = places[at]
        hosted.append(Hosted(Node(names[at], at, address, interface), actor, told))
    nodes = RayNodes(relay, hosted)
    nodes.use_packages()
    return nodes


def _spec(lab: Lab | None, ranks_per_node: int, nodes: int) -> ClusterSpec:
    """The lab's, with as many nodes; elsewhere links are as fast as they are."""
    if lab is None:
        links = {"inter_node": {"rate": "unlimited"}}
        data: dict[str, Any] = {"name": BACKEND, "links": links}
    else:
        data = lab.spec.to_dict()
        names = {f"node{at}" for at in range(nodes)}
        overrides = data.pop("overrides", {})
        if kept := {name: it for name, it in overrides.items() if name in names}:
            data["overrides"] = kept
    return ClusterSpec.from_dict({**data, "nodes": nodes, "ranks_per_node": ranks_per_node})
