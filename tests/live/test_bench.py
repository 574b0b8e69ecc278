"""All-reduces timed on a real lab: every sum right, bytes of each contender, the NIC's counters."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp.calibrate import MOST_ROUNDS
from ddp.fixed import IN_A_ROW, SOME_BYTES
from tests.live.lab import TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

SIZES = (65_536, 1_000_000)
ALGORITHMS = ("native", "ring", "hierarchical")
ROUNDS, WARMUP = 3, 1
OTHERWISE = 25e6  # bytes that calibrating sends beside the algorithm, at most
SENT = {  # over S, by the busiest node
    "contiguous": {"native": 1.5, "ring": 1.5, "hierarchical": 1.0},
    "interleaved": {"native": 3.0, "ring": 1.5, "hierarchical": 1.0},
}


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    with lab(tmp_path_factory.mktemp("bench"), "2x2", "--rate", "400mbit") as made:
        yield made


def benched(it: TestLab, *words: str) -> dict[str, Any]:
    rounds = ("--iters", str(ROUNDS), "--warmup-iters", str(WARMUP))
    done = it.command("bench", "allreduce", "--lab", it.name, *rounds, *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def both(it: TestLab) -> dict[str, Any]:
    """All algorithms, with ranks placed in both ways."""
    sizes = " ".join(map(str, SIZES))
    return benched(it, "--sizes", sizes, "--placement", "contiguous interleaved")


def test_every_sum_is_right_in_every_placement(both: dict[str, Any]) -> None:
    rows = both["rows"]
    assert [(row["size_bytes"], row["placement"], row["algorithm"]) for row in rows] == [
        (size, placement, name) for size in SIZES for placement in SENT for name in ALGORITHMS
    ]
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    assert all(row["time_s"]["n"] == ROUNDS for row in rows)


def test_bytes_follow_from_where_ranks_are(both: dict[str, Any]) -> None:
    for row in both["rows"]:
        expected = SENT[row["placement"]][row["algorithm"]]
        assert row["payload_bytes_ratio"] == pytest.approx(expected, rel=0.01), row
        assert row["payload_counted"] == (row["algorithm"] != "native")
        if row["algorithm"] != "native":
            assert row["bound_ratio"] == pytest.approx(expected, rel=0.01)
    ceilings = {
        (row["placement"], row["size_bytes"]): row["ceiling_over_native"] for row in both["rows"]
    }
    assert ceilings["contiguous", 1_000_000] == pytest.approx(1.5, rel=0.01)
    assert ceilings["interleaved", 1_000_000] == pytest.approx(3.0, rel=0.01)


def test_all_is_predicted_and_limited_by_what_was_probed(both: dict[str, Any]) -> None:
    assert both["probe"]["ok"] is True
    measured = [
        link["measured_bytes_per_second"]
        for link in both["probe"]["links"]
        if link["mode"] == "both_ways"
    ]
    for row in both["rows"]:
        assert row["predicted_s"] > 0
        assert row["limit_s"] == pytest.approx(row["size_bytes"] / min(measured), rel=0.03)


@pytest.mark.parametrize("placement", SENT)
def test_native_really_sends_what_its_ring_does(it: TestLab, placement: str) -> None:
    """The one figure that ranks do not count: the kernel's counters of the node's NIC."""
    before = tx_bytes(it)
    size = 8_000_000
    one = ("--sizes", str(size), "--algorithms", "native", "--placement", placement)
    (row,) = benched(it, *one)["rows"]
    sent = tx_bytes(it) - before
    payload = row["payload_bytes"] * (ROUNDS + WARMUP)
    timed = (MOST_ROUNDS + 1) * IN_A_ROW * SENT[placement]["native"] * SOME_BYTES
    assert payload <= sent <= 1.06 * (payload + timed) + OTHERWISE
    assert row["payload_bytes"] == pytest.approx(SENT[placement]["native"] * size, rel=0.01)


def tx_bytes(it: TestLab) -> int:
    node = it.nodes().list()[0]
    path = Path("/sys/class/net") / node.interface / "statistics/tx_bytes"
    return int(it.in_node(node.name, "cat", str(path)))


def test_check_needs_a_lab_with_floors(tmp_path: Path) -> None:
    with lab(tmp_path, "4x1", "--rate", "400mbit") as other:
        done = other.command("bench", "allreduce", "--lab", other.name, "--check")
        assert done.returncode == 1
        assert "no floor is of such a lab" in " ".join(done.stderr.split())
        assert "make cluster-up CLUSTER=2x2 RATE=200mbit" in done.stderr
