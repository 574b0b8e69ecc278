"""Limits that somebody changed by hand are noticed; a change of the lab's own is none."""

from dataclasses import replace

import pytest

from cluster import held
from cluster.errors import ShapingError
from cluster.held import require_limited
from cluster.kept import Lab, write_lab
from cluster.links import change_links
from cluster.state import LabDirectory
from tests.cluster.remembered import Remembered


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "PAUSE_S", 0.0)


def test_what_is_held_is_as_the_lab_says(lab: Lab) -> None:
    require_limited(lab)


@pytest.mark.parametrize("rate", [None, 300_000_000])
def test_another_limit_is_told_with_both(lab: Lab, nodes: Remembered, rate: int | None) -> None:
    other = lab.spec.with_rates("node1", {"inter_node": "unlimited" if rate is None else "300mbit"})
    nodes.held["node1"] = other.links_of("node1")
    with pytest.raises(ShapingError, match="changed it by hand") as caught:
        require_limited(lab)
    shown = "unlimited" if rate is None else "300mbit"
    assert caught.value.seen == f"node1 out: asked 200mbit; read back {shown}"


def test_a_change_of_the_labs_own_is_none(lab: Lab) -> None:
    change_links(lab.name, "node1", {"inter_node": "50mbit"}, probe=False)
    require_limited(lab)  # as it was before, in the hands of a run that just begins


def test_a_change_that_is_not_kept_yet_is_waited_for(
    lab: Lab, nodes: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lab.spec.with_rates("node1", {"inter_node": "50mbit"})
    nodes.held["node1"] = other.links_of("node1")
    slept = []

    def kept_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        directory = LabDirectory.of(lab.name)
        with directory.locked():
            write_lab(replace(lab, spec=other), directory)

    monkeypatch.setattr(held.time, "sleep", kept_meanwhile)
    require_limited(lab)
    assert len(slept) == 1
