"""What cluster advises to type is told as scale takes it, whose labs are its own."""

from typing import cast

import pytest

import cluster.carried
from cluster.backends import Chosen
from cluster.carried import rate_advice
from cluster.errors import ProbeFailed
from cluster.netns import NETNS
from cluster.nodes import Making, Shapeable
from cluster.probe import LinkMeasurement, ProbeReport, require_carried
from cluster.probe_plan import Mode
from cluster.refusals import explain_refusal
from cluster.spec import load_cluster
from jobs.errors import LaunchError, RunFailed
from jobs.scale.places import LabChoice
from jobs.scale.plan import Size
from jobs.scale.sizes import _at

SIZE = Size(4, 1)
LABS = LabChoice(Chosen(NETNS), Making())


@pytest.mark.parametrize("cluster_name", ["2x2", "4x1"])
def test_the_rate_that_is_carried_is_told(
    monkeypatch: pytest.MonkeyPatch, cluster_name: str
) -> None:
    monkeypatch.setattr(cluster.carried, "carried_rate", lambda *_: 3_000_000_000)
    spec = load_cluster(cluster_name, "40gbit")
    link = LinkMeasurement("node0", "node1", Mode.BOTH_WAYS, 40_000_000_000, 4e8, 5e9, 0.08, 0.1)
    report = ProbeReport((link,), 0)
    advice = rate_advice(report, cast(Shapeable, None), spec, "scale-4x1-77")
    assert advice is not None
    assert "make cluster-up" in advice
    with pytest.raises(ProbeFailed) as caught:
        require_carried(report, advice)
    error = _at(SIZE, caught.value, LABS)
    assert isinstance(error, LaunchError)
    assert error.message == f"size 4x1: {caught.value.message}"
    assert error.fix == (
        "this machine carries up to about 3gbit: RATE=3gbit",
        "end what else keeps this machine busy, and try again",
    )


def test_sudo_where_namespaces_are_refused_is_told() -> None:
    error = _at(SIZE, explain_refusal("refused", "mei", False, {}), LABS)
    assert error.fix[0].split()[:2] == ["PRIVILEGE=sudo", "asks"]


def test_what_is_done_to_labs_of_ones_own_is_not_told() -> None:
    fixes = ("make cluster-down && make cluster-up RATE=50mbit", "make cluster-up", "ROUNDS=3")
    assert _at(SIZE, RunFailed("it broke", fix=fixes), LABS).fix == ("ROUNDS=3",)
