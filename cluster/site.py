"""Where jobs run: a lab, or a cluster of machines that was there before and outlives the job."""

from dataclasses import dataclass, field
from typing import Protocol

from cluster.kept import Lab
from cluster.nodes import Nodes
from cluster.probe import ProbeReport
from cluster.spec import ClusterSpec


class Site(Protocol):
    """What a run must know of where it runs; `cluster.lab.Lab` is one, `Attached` another."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def spec(self) -> ClusterSpec:
        """Nodes, ranks and links. Links without a limit are as fast as they are."""

    @property
    def backend(self) -> str: ...

    @property
    def nodes(self) -> Nodes: ...

    @property
    def probe(self) -> ProbeReport | None:
        """What its links carried before the run; None where nobody measured them."""

    @property
    def created_at(self) -> float:
        """Wall clock, seconds since 1970."""

    @property
    def underlay(self) -> Lab | None:
        """The lab that limits the links, and that is in use while a job runs; None: no lab does."""


@dataclass(frozen=True)
class Attached:
    """A cluster that somebody else brought up, as a job uses it. Nothing of it is limited by us."""

    name: str
    spec: ClusterSpec
    backend: str
    nodes: Nodes = field(compare=False)
    created_at: float
    underlay: Lab | None
    """Where the cluster's machines are nodes of a lab: that lab."""
    probe: ProbeReport | None = None
