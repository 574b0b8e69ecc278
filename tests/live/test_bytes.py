"""What really crosses the links: the executor's count against the formulas and the kernel's.

At each shape the three jobs run one after another in one set of ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import load_job
from tests.live.lab import TestLab, lab
from tests.live.turns import Lines, run_in_turn

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

JOBS = ("hier", "ring", "ring-interleaved")
STEPS = 6
WARMUP = 3
SIZE = (
    "pace=null",
    "model.layers=2",
    "data.batch_size=1",
    f"train.steps={STEPS}",
    f"train.warmup_steps={WARMUP}",
)
OVER_TCP = "ddp.shared_memory=false"  # inside nodes too, where loopback then counts it
HEADERS = 1.08  # what the kernel counts beyond payload: Ethernet, IP, TCP, acknowledgements


@dataclass(frozen=True)
class Counted:
    """All that was counted at one shape: by job, each line of each rank; by node, loopback."""

    num_nodes: int
    ranks_per_node: int
    lines: dict[str, Lines]
    loopback: dict[str, list[int]]

    @classmethod
    def of(
        cls, it: TestLab, jobs: tuple[str, ...], nodes: int, ranks: int, *more: str
    ) -> "Counted":
        folder = it.home / "turns"
        lines = run_in_turn(it, folder, {job: load_job(job, (*SIZE, *more)) for job in jobs})
        loopback = {
            job: [int((folder / job / f"loopback{node}").read_text()) for node in range(nodes)]
            for job in jobs
        }
        return cls(nodes, ranks, lines, loopback)

    def expected(self, job: str) -> float:
        """Payload the busiest node sends in a step."""
        size: int = self.lines[job][0][0]["gradient_bytes"]
        ranks = self.num_nodes * self.ranks_per_node
        ring = 2 * (ranks - 1) / ranks
        share = {
            "ring": ring,
            "ring-interleaved": self.ranks_per_node * ring,
            "hier": 2 * (self.num_nodes - 1) / self.num_nodes,
        }
        return share[job] * size

    def steps(self, job: str) -> list[list[dict[str, Any]]]:
        return [[line for line in rank if line["kind"] == "step"] for rank in self.lines[job]]

    def totals(self, job: str, key: str) -> list[int]:
        """The whole run's count, added up over the ranks of each node."""
        totals = [0] * self.num_nodes
        for header, *_, end in self.lines[job]:
            totals[header["node"]] += end[key] or 0
        return totals


@pytest.fixture(scope="module", params=["2x2", "2x4", "4x2"])
def counted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Counted]:
    """Fast links, so that bytes come cheap."""
    home = tmp_path_factory.mktemp(request.param)
    nodes, ranks = map(int, request.param.split("x"))
    with lab(home, request.param, "--rate", "1gbit", "--no-probe") as it:
        yield Counted.of(it, JOBS, nodes, ranks, OVER_TCP)


@pytest.mark.parametrize("job", JOBS)
def test_payload_is_the_formula_and_the_nic_agrees(counted: Counted, job: str) -> None:
    expected = counted.expected(job)
    steps = counted.steps(job)
    for number in range(STEPS):
        sent = [0] * counted.num_nodes
        for (header, *_), rank_steps in zip(counted.lines[job], steps, strict=True):
            assert len(rank_steps) == STEPS
            sent[header["node"]] += rank_steps[number]["inter_node_bytes"]
        assert max(sent) == pytest.approx(expected, rel=0.01)

    payload = counted.totals(job, "inter_node_bytes")
    assert max(payload) == pytest.approx(expected * (STEPS + WARMUP), rel=0.01)
    for direction in ("nic_tx_bytes", "nic_rx_bytes"):
        for node, nic in enumerate(counted.totals(job, direction)):
            assert payload[node] <= nic <= HEADERS * payload[node], (direction, node)

    # the measured steps alone: nothing else crosses the links while they run
    for (header, *_), rank_steps in zip(counted.lines[job], steps, strict=True):
        if header["local_rank"] == 0:
            nic = sum(record["nic_tx_bytes"] for record in rank_steps)
            assert nic == pytest.approx(expected * STEPS, rel=HEADERS - 1)


def test_every_job_ends_with_one_checksum_and_the_same_loss(counted: Counted) -> None:
    losses = set()
    for job in JOBS:
        assert len({rank[-1]["params_sha256"] for rank in counted.lines[job]}) == 1, job
        last = [steps[-1]["loss"] for steps in counted.steps(job)]
        losses.add(round(sum(last) / len(last), 3))
    assert max(losses) - min(losses) <= 0.002


def test_what_stays_inside_a_node_is_what_was_sent_inside(counted: Counted) -> None:
    """Loopback carries the intra-node payload and nothing of what goes between nodes.

    Two jobs: what each sends besides (barriers, checksums) cancels, and at 2 ranks a node and more
    the interleaved ring sends nothing inside.
    """
    inside = {job: counted.totals(job, "intra_node_bytes") for job in JOBS}
    assert set(inside["ring-interleaved"]) == {0}
    for node in range(counted.num_nodes):
        assert inside["hier"][node] > 0
        # retransmissions differ a little from job to job
        more = counted.loopback["hier"][node] - counted.loopback["ring-interleaved"][node]
        assert more == pytest.approx(inside["hier"][node], rel=HEADERS - 1)


def test_shared_memory_leaves_loopback_silent(tmp_path: Path) -> None:
    with lab(tmp_path, "2x2", "--rate", "1gbit", "--no-probe") as it:
        counts = Counted.of(it, ("hier",), 2, 2)
        for node, inside in enumerate(counts.totals("hier", "intra_node_bytes")):
            assert inside > 0
            assert counts.loopback["hier"][node] < 0.01 * inside


def test_one_rank_a_node_leaves_loopback_silent(tmp_path: Path) -> None:
    cluster = tmp_path / "2x1.yaml"
    cluster.write_text("name: 2x1\nnodes: 2\nranks_per_node: 1\nlinks: {inter_node: {rate: 1gbit}}")
    with lab(tmp_path, str(cluster), "--no-probe") as it:
        counts = Counted.of(it, ("hier",), 2, 1)
        for node, between in enumerate(counts.totals("hier", "inter_node_bytes")):
            assert between > 0
            assert counts.loopback["hier"][node] < 0.01 * between
        assert counts.totals("hier", "intra_node_bytes") == [0, 0]
        assert not it.in_node("node0", "sh", "-c", "ls -A /dev/shm")
