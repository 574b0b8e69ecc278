"""A lab whose nodes are this machine itself: real agents and processes, no namespaces, no root."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

import cluster.lab
import jobs.launch
import jobs.underlay
from cluster.errors import HostError
from cluster.lab import Lab
from cluster.nodes import Monitoring, Node, NodeFacts, NodeProcess
from cluster.probe import LinkMeasurement, ProbeReport
from cluster.spec import ClusterSpec, LinksSpec
from cluster.state import LabDirectory
from jobs.rankplan import Program
from tests.jobs.ranks import RunRanks, rank_host

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
STAND_IN = Program("stand_in:main", ("stand_in",))
MBIT_200 = 25_000_000.0  # bytes/s
CEILING = MBIT_200 * 1448 / 1514
MEASURED_AT = 1_795_000_000.0
MakeLab = Callable[..., Lab]


class LocalNodes:
    """Runs what belongs into a node as a process of this machine."""

    python = sys.executable

    def __init__(self, num_nodes: int) -> None:
        self._nodes = tuple(Node(f"node{k}", k, "127.0.0.1", "lo") for k in range(num_nodes))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.alive = True
        self.asked: list[tuple[Path, bool]] = []
        """What nodes had to see, and whether they had to be able to write to it."""
        self.hidden: Path | None = None

    @property
    def user(self) -> tuple[int, int]:
        return os.geteuid(), os.getegid()

    @property
    def project(self) -> str:
        return str(ROOT)

    @property
    def shares_files(self) -> bool:
        return True

    @property
    def monitoring(self) -> Monitoring | None:
        return None

    def list(self) -> tuple[Node, ...]:
        return self._nodes

    def require_visible(self, path: Path, *, writable: bool = False) -> None:
        self.asked.append((path, writable))
        if self.hidden is not None and path.is_relative_to(self.hidden):
            raise HostError(f"{path} cannot be seen")

    def exec(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> NodeProcess:
        del node
        paths = os.pathsep.join([str(ROOT), str(HERE)])
        process = subprocess.Popen(
            argv,
            env={**os.environ, **(env or {}), "PYTHONPATH": paths},
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr or subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def facts(self, node: Node) -> NodeFacts:
        del node
        return NodeFacts("6.1", "boot", 2, 1 << 30, "3.11", "cubic")

    def up(self, spec: ClusterSpec) -> None:
        raise NotImplementedError

    def keep(self) -> None:
        raise NotImplementedError

    def shape(self, node: Node, links: LinksSpec) -> None:
        raise NotImplementedError

    def shape_plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        raise NotImplementedError

    def limits(self, node: Node) -> Mapping[str, int | None]:
        raise NotImplementedError

    def down(self) -> None:
        raise NotImplementedError

    def save(self) -> dict[str, Any]:
        raise NotImplementedError


def cluster_spec(nodes: int, ranks_per_node: int, rate: str = "200mbit") -> ClusterSpec:
    return ClusterSpec.model_validate(
        {
            "name": f"{nodes}x{ranks_per_node}",
            "nodes": nodes,
            "ranks_per_node": ranks_per_node,
            "links": {"inter_node": {"rate": rate}},
        }
    )


def probe_report(spec: ClusterSpec) -> ProbeReport:
    """Each node to the next and back, alone and both ways at once, and each node's inside."""
    names = spec.node_names
    pairs = [(names[k], names[k + 1]) for k in range(len(names) - 1)]
    links = []
    for mode, share in (("one_way", 1.0), ("both_ways", 0.98)):
        for src, dst in [*pairs, *[(dst, src) for src, dst in pairs]]:
            carried = CEILING * share
            links.append(
                LinkMeasurement(src, dst, mode, 200_000_000, carried, CEILING, share, 0.0002)
            )
    for name in names:
        links.append(LinkMeasurement(name, name, "intra_node", None, 7e8, None, None, 5e-5))
    return ProbeReport(tuple(links), MEASURED_AT)


@pytest.fixture
def make_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLab]:
    """`make_lab(nodes, ranks_per_node, probed=True)`; what it started is ended afterwards."""
    made: list[LocalNodes] = []
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(jobs.underlay, "require_limited", lambda _: None)  # there are no links
    monkeypatch.setattr(
        jobs.underlay, "how_it_ended", lambda lab: None if lab.nodes.alive else "it has ended"
    )

    def make(nodes: int = 2, ranks_per_node: int = 2, *, probed: bool = True) -> Lab:
        LabDirectory.of("default").path.mkdir(mode=0o700, exist_ok=True)
        spec = cluster_spec(nodes, ranks_per_node)
        local = LocalNodes(nodes)
        made.append(local)
        report = probe_report(spec) if probed else None
        return Lab("default", spec, "netns", local, report, MEASURED_AT)

    yield make
    for local in made:
        for process in local.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None and not pipe.closed:
                    pipe.close()


@pytest.fixture(scope="session")
def run_ranks() -> Iterator[RunRanks]:
    """Runs whole ranks, forked from one process that has imported torch once for all tests."""
    with rank_host() as run:
        yield run


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and labs of a test are its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def lab(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab that is up, of this machine's own processes, on which `run` runs the stand-in."""
    made = make_lab()
    launch = jobs.launch.launch

    def launch_stand_in(*arguments: Any) -> Any:
        return launch(*arguments, program=STAND_IN)

    def open_lab(name: str = "default") -> Lab:
        assert name == "default"
        return made

    monkeypatch.setattr(cluster.lab, "open_lab", open_lab)
    monkeypatch.setattr(jobs.launch, "launch", launch_stand_in)
    return made
