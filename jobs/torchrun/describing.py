"""run.json of ranks that somebody else started, before their first step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NoReturn

from cluster.errors import NodeError
from cluster.nodes import Node, NodeFacts
from cluster.site import Attached
from cluster.spec import ClusterSpec, LinkSpec, LinksSpec
from jobs.rankplan import RankPlan, Threads
from jobs.runinfo import describe_run
from jobs.spec import JobSpec
from jobs.torchrun.facts import Layout
from jobs.torchrun.folder import Session

BACKEND = "torchrun"


@dataclass(frozen=True)
class SeenNodes:
    """Machines on which ranks have been started; they can be described, and nothing else."""

    layout: Layout

    @property
    def python(self) -> str:
        return "python"

    @property
    def user(self) -> tuple[int, int]:
        self._none_of_ours()

    @property
    def project(self) -> None:
        return None

    @property
    def shares_files(self) -> bool:
        return False

    def list(self) -> tuple[Node, ...]:
        return self.layout.nodes

    def facts(self, node: Node) -> NodeFacts:
        return NodeFacts(**self.layout.first[node.index].machine)

    def require_visible(self, path: Path, *, writable: bool = False) -> None:  # noqa: ARG002
        self._none_of_ours()

    def exec(
        self,
        node: Node,  # noqa: ARG002
        argv: Sequence[str],  # noqa: ARG002
        *,
        env: Mapping[str, str] | None = None,  # noqa: ARG002
        cwd: str | None = None,  # noqa: ARG002
        stderr: IO[bytes] | None = None,  # noqa: ARG002
    ) -> NoReturn:
        self._none_of_ours()

    def _none_of_ours(self) -> NoReturn:
        raise NodeError(
            "a program was to be started on a machine whose ranks somebody else started",
            "whoever started the ranks starts and ends what runs there",
        )


def describe(
    job: JobSpec, layout: Layout, session: Session, source: str, *, threads_set: bool
) -> dict[str, Any]:
    """run.json before the first step; `source` is who started the ranks."""
    nodes, each = len(layout.first), layout.nproc_per_node
    spec = ClusterSpec(
        name=f"{nodes}x{each}",
        nodes=nodes,
        ranks_per_node=each,
        links=LinksSpec(inter_node=LinkSpec.model_validate({"rate": "unlimited"})),
    )
    created_at = datetime.fromisoformat(session.created_at)
    site = Attached(source, spec, BACKEND, SeenNodes(layout), created_at.timestamp(), None)
    plan = RankPlan(
        job=job,
        node_of=layout.node_of,
        nodes=layout.nodes,
        nproc_per_node=each,
        threads=Threads(layout.threads, threads_set),
        links=None,
        measure_links=nodes > 1,
    )
    facts = {
        node.name: {**first.machine, "host": first.host}
        for node, first in zip(layout.nodes, layout.first, strict=True)
    }
    return {**describe_run(session.run_id, site, plan, created_at), "nodes": facts}
