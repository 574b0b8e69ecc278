"""The probe's report: what is judged, what is kept, what a refusal says."""

import json
from dataclasses import replace

import pytest

from cluster.errors import ProbeFailed
from cluster.probe import LinkMeasurement, ProbeReport, require_carried
from cluster.units import parse_rate

CEILING = 200e6 / 8 * 1448 / 1514


def link(ratio: float, mode: str = "one_way", src: str = "node0") -> LinkMeasurement:
    return LinkMeasurement(src, "node1", mode, 200_000_000, ratio * CEILING, CEILING, ratio, 0.0002)


FREE = LinkMeasurement("node0", "node0", "intra_node", None, 5e9, None, None, 0.00005)


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
