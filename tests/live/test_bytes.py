"""What really crosses the links: the executor's count against the formulas and the kernel's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.lab import TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

STEPS = 6
WARMUP = 3
SIZE = ("pace=null", "model.layers=2", f"train.steps={STEPS}", f"train.warmup_steps={WARMUP}")
HEADERS = 1.06  # what the kernel counts beyond payload: Ethernet, IP, TCP, acknowledgements


@pytest.fixture(scope="module", params=["2x2", "2x4", "4x2"])
def shaped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TestLab, int, int]]:
    """A lab, its number of nodes and its ranks per node; fast links, so that bytes come cheap."""
    home = tmp_path_factory.mktemp(request.param)
    nodes, ranks = map(int, request.param.split("x"))
    with lab(home, request.param, "--rate", "1gbit", "--no-probe") as it:
        yield it, nodes, ranks


def per_step_share(job: str, nodes: int, ranks_per_node: int) -> float:
    """Payload the busiest node sends in a step, over the gradients' size."""
    ranks = nodes * ranks_per_node
    ring = 2 * (ranks - 1) / ranks
    return {
        "ring": ring,
        "ring-interleaved": ranks_per_node * ring,
        "hier": 2 * (nodes - 1) / nodes,
    }[job]


def node_totals(ends: list[dict[str, Any]], headers: list[dict[str, Any]], key: str) -> list[int]:
    """The whole run's count, added up over the ranks of each node."""
    totals: dict[int, int] = {}
    for header, end in zip(headers, ends, strict=True):
        totals[header["node"]] = totals.get(header["node"], 0) + (end.get(key) or 0)
    return [totals[node] for node in sorted(totals)]


@pytest.mark.parametrize("job", ["hier", "ring", "ring-interleaved"])
def test_payload_is_the_formula_and_the_nic_agrees(
    shaped: tuple[TestLab, int, int], job: str
) -> None:
    it, nodes, ranks_per_node = shaped
    summary = it.run(job, *SIZE)
    size = summary["gradient_bytes"]
    expected = per_step_share(job, nodes, ranks_per_node) * size
    assert summary["inter_node_bytes_per_step"] == pytest.approx(expected, rel=0.01)
    assert summary["inter_node_bytes_bound"] == pytest.approx(2 * (nodes - 1) / nodes * size)
    for rank_steps in it.steps(summary["run_id"]):
        assert len(rank_steps) == STEPS

    lines = it.records(summary["run_id"])
    headers, ends = [rank[0] for rank in lines], [rank[-1] for rank in lines]
    payload = node_totals(ends, headers, "inter_node_bytes")
    for direction in ("nic_tx_bytes", "nic_rx_bytes"):
        counted = node_totals(ends, headers, direction)
        for node, (nic, sent) in enumerate(zip(counted, payload, strict=True)):
            assert sent <= nic <= HEADERS * sent, (direction, node, nic, sent)
    assert max(payload) == pytest.approx(expected * (STEPS + WARMUP), rel=0.01)
    # the measured steps alone: nothing else crosses the links while they run
    for header, steps in zip(headers, it.steps(summary["run_id"]), strict=True):
        if header["local_rank"] == 0:
            nic = sum(record["nic_tx_bytes"] for record in steps)
            assert nic == pytest.approx(expected * STEPS, rel=HEADERS - 1)


def loopback(it: TestLab, node: str) -> int:
    """Bytes that ever crossed the loopback of a node."""
    done = it.in_node(node, "cat", "/sys/class/net/lo/statistics/tx_bytes")
    return int(done)


def test_what_stays_inside_a_node_is_what_was_sent_inside(tmp_path: Path) -> None:
    """Loopback carries the intra-node payload and nothing of what goes between nodes.

    Two runs that differ by STEPS steps: what a run sends once (parameters, calibration) cancels.
    """
    with lab(tmp_path, "2x2", "--rate", "1gbit", "--no-probe") as it:
        counted = [[loopback(it, f"node{node}") for node in range(2)]]
        payload = []
        for steps in (STEPS, 2 * STEPS):
            summary = it.run("hier", *SIZE, f"train.steps={steps}")
            lines = it.records(summary["run_id"])
            headers, ends = [rank[0] for rank in lines], [rank[-1] for rank in lines]
            payload.append(node_totals(ends, headers, "intra_node_bytes"))
            counted.append([loopback(it, f"node{node}") for node in range(2)])
        for node in range(2):
            first, second = (counted[run + 1][node] - counted[run][node] for run in range(2))
            sent = payload[1][node] - payload[0][node]
            # retransmissions and the calibration's small messages differ a little from run to run
            assert second - first == pytest.approx(sent, rel=HEADERS - 1), node


def test_one_rank_a_node_leaves_loopback_silent(tmp_path: Path) -> None:
    with lab(tmp_path, "4x1", "--rate", "1gbit", "--no-probe") as it:
        summary = it.run("hier", *SIZE)
        between = summary["inter_node_bytes_per_step"] * (STEPS + WARMUP)
        for node in range(4):
            assert loopback(it, f"node{node}") < 0.01 * between
        records = json.dumps(it.steps(summary["run_id"]))
        assert '"intra_node_bytes": 0' in records
        assert not it.in_node("node0", "sh", "-c", "ls -A /dev/shm")
