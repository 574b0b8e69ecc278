"""The probe's report: what is judged, what is kept, what a refusal says."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

import cluster.probe
from cluster.errors import ProbeFailed
from cluster.nodes import Node
from cluster.probe import LinkMeasurement, ProbeReport, require_carried, run_probe
from cluster.probe_plan import Flow
from cluster.probe_run import Measured
from cluster.spec import load_cluster
from cluster.topology import FabricNetwork
from cluster.units import parse_rate

CEILING = 200e6 / 8 * 1448 / 1514


def link(ratio: float, mode: str = "one_way", src: str = "node0") -> LinkMeasurement:
    return LinkMeasurement(src, "node1", mode, 200_000_000, ratio * CEILING, CEILING, ratio, 0.0002)


FREE = LinkMeasurement("node0", "node0", "intra_node", None, 5e9, None, None, 0.00005)


class Ends:
    """Ends of the probe that only write down what they are asked."""

    said: ClassVar[list[str]] = []

    def __init__(self, _nodes: object) -> None:
        self.said.clear()

    def __enter__(self) -> "Ends":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ping(self, src: Node, dst: Node) -> float:
        self.said.append("ping")
        return 0.001 * (1 + src.index) + 0.0001 * dst.index

    def measure(self, flows: Sequence[Flow]) -> dict[Flow, Measured]:
        self.said.append("measure")
        return {flow: Measured(flow.ceiling_bytes_per_s or 1.0, 0.0) for flow in flows}


class TwoNodes:
    def list(self) -> tuple[Node, ...]:
        return FabricNetwork().nodes(load_cluster("2x2"))


def test_round_trips_are_taken_before_any_link_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that has just ended leaves a queue behind, in which the next ping would wait."""
    monkeypatch.setattr(cluster.probe, "ProbeEnds", Ends)
    report = run_probe(TwoNodes(), load_cluster("2x2"))  # type: ignore[arg-type]
    assert Ends.said == ["ping"] * 4 + ["measure"] * 5
    trips = {(link.src, link.dst): link.round_trip_s for link in report.links}
    assert trips == {
        ("node0", "node1"): pytest.approx(0.0011),
        ("node1", "node0"): pytest.approx(0.002),
        ("node0", "node0"): pytest.approx(0.001),
        ("node1", "node1"): pytest.approx(0.0021),
    }


def test_survives_being_kept() -> None:
    report = ProbeReport((link(0.999), FREE), 1.5)
    assert ProbeReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_json_contract() -> None:
    data = ProbeReport((link(0.999), FREE), 1.5).to_json()
    assert (data["schema"], data["ok"], data["measured_at"]) == (1, True, 1.5)
    for entry in data["links"]:
        assert set(entry) == {
            "src",
            "dst",
            "mode",
            "configured_bits_per_second",
            "measured_bytes_per_second",
            "ceiling_bytes_per_second",
            "ratio",
            "round_trip_s",
        }
    assert data["links"][1]["ceiling_bytes_per_second"] is None


@pytest.mark.parametrize("ratio", [0.971, 1.0, 1.029])
def test_within_three_percent_is_carried(ratio: float) -> None:
    require_carried(ProbeReport((link(ratio), FREE), 0))


def test_too_slow_says_how_much_was_carried_and_what_to_ask_for() -> None:
    report = ProbeReport((link(0.999), link(0.5, "both_ways", "node1"), link(0.8)), 0)
    assert not report.ok
    with pytest.raises(ProbeFailed) as caught:
        require_carried(report)
    error = caught.value
    assert "carried only 95.6 Mbit/s" in error.message
    assert "limit 200mbit" in error.message
    assert error.seen is not None
    for part in ("node1 <-> node1", "can carry 191.3 Mbit/s", "measured 95.6 Mbit/s (50%)"):
        assert part in error.seen
    assert "node0 -> node1" in error.seen
    suggested = error.fix[0].partition("RATE=")[2]
    assert 80e6 < parse_rate(suggested) < 95.6e6


def test_too_fast_is_refused_too() -> None:
    with pytest.raises(ProbeFailed, match="carries more than it was limited to"):
        require_carried(ProbeReport((link(1.05),), 0))


def test_finds_by_mode_and_source() -> None:
    there, back = link(1.0), replace(link(0.99), src="node1", dst="node0")
    report = ProbeReport((there, back, FREE), 0)
    assert report.find("one_way", "node1") == back
    assert report.find("intra_node", "node0") == FREE
    assert report.find("both_ways", "node0") is None
