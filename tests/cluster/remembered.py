"""Nodes that only remember the limits they were told, and a lab made of them.

They refuse on demand; how tc is told is another test's matter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import cluster.backends
import cluster.kept
import cluster.lab
from cluster.linklog import LinkChange, changes_since
from cluster.nodes import Backend, Fit, Node
from cluster.probe import LinkMeasurement, ProbeReport
from cluster.spec import ClusterSpec, LinksSpec, load_cluster
from cluster.state import LabDirectory

SPEC = load_cluster("2x2")
NODES = (Node("node0", 0, "198.18.0.10", "fab0"), Node("node1", 1, "198.18.0.11", "fab0"))
GOOD = ProbeReport((LinkMeasurement("node0", "node1", "one_way", 8, 1.0, 1.0, 1.0, 0.1),), 7.0)
BAD = ProbeReport((replace(GOOD.links[0], ratio=0.5),), 8.0)
SLOW = {"inter_node": "50mbit"}


@dataclass
class Remembered:
    """Nodes that hold what they were told, but for those that refuse."""

    held: dict[str, LinksSpec] = field(default_factory=dict)
    refusing: dict[str, BaseException] = field(default_factory=dict)
    """By node: what happens instead of the next change."""
    forever: bool = False
    alive: bool = True

    def list(self) -> tuple[Node, ...]:
        return NODES

    def shape(self, node: Node, links: LinksSpec) -> None:
        fault = self.refusing.get(node.name)
        if fault is not None and self.held[node.name] != links:
            if not self.forever:
                del self.refusing[node.name]
            raise fault
        self.held[node.name] = links

    def shape_plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        return () if self.held[node.name] == links else (f"change {node.name}",)

    def limits(self, node: Node) -> Mapping[str, int | None]:
        links = self.held[node.name]
        nic = links.inter_node.rate_bits_per_s
        return {"out": nic, "in": nic, "inside": links.intra_node.rate_bits_per_s}

    def up(self, spec: ClusterSpec) -> None:
        del spec

    def keep(self) -> None: ...

    def down(self) -> None:
        self.alive = False

    def save(self) -> dict[str, Any]:
        return {}

    @property
    def rates(self) -> Sequence[int | None]:
        """What each node's NIC is limited to, in Mbit/s."""
        rates = [self.held[node.name].inter_node.rate_bits_per_s for node in NODES]
        return [rate and rate // 10**6 for rate in rates]


def log() -> list[LinkChange]:
    return list(changes_since(LabDirectory.of("default").path, 0))


def rates_logged(change: LinkChange) -> list[tuple[str, str, int | None]]:
    return [(it.node, it.direction, it.configured_bits_per_second) for it in change.rates]


def backend_of(name: str, create: Callable[..., Any], attach: Callable[..., Any]) -> Backend:
    """A backend that always fits, and shares nothing between its labs."""
    return Backend(
        name=name,
        summary="in words",
        fit=lambda: Fit(True, "words need nothing"),
        create=create,
        prepare=lambda _place, _timed: None,
        attach=attach,
        plan=lambda _spec, _place: (),
        clear=lambda _directory: None,
    )


def only(monkeypatch: pytest.MonkeyPatch, *backends: Backend) -> None:
    """These are all the backends there are."""
    for module in (cluster.backends, cluster.kept, cluster.lab):
        monkeypatch.setattr(module, "BACKENDS", {each.name: each for each in backends})
