"""Changing the links of a lab: what stands, what is known of it, and what runs are told."""

from dataclasses import replace

import pytest

import cluster.lab
import cluster.links
from cluster.errors import LabBusy, LabExists, ProbeFailed, UnitError
from cluster.kept import Lab
from cluster.lab import bring_up, measure, open_lab, take_down
from cluster.linklog import changes_since
from cluster.links import change_links, plan_change, proven
from cluster.spec import ClusterSpec, load_cluster
from cluster.state import LabDirectory
from tests.cluster.remembered import BAD, GOOD, SLOW, SPEC, Remembered, log, rates_logged


def test_a_change_is_made_logged_measured_and_kept(lab: Lab, nodes: Remembered) -> None:
    assert (lab.proof, lab.changed_at, lab.link_position) == ("probed", None, 0)
    changed = change_links("default", "node1", SLOW)
    assert nodes.rates == [200, 50]
    assert changed == open_lab()
    assert changed.spec.describe() == "2x2: 2 nodes x 2 ranks, 200mbit, node1 50mbit"
    assert (changed.proof, changed.probe) == ("probed", GOOD)
    assert changed.changed_at is not None and changed.changed_at > lab.created_at
    (change,) = log()
    assert rates_logged(change) == [("node1", "out", 50_000_000), ("node1", "in", 50_000_000)]
    assert change.settled_ns is not None
    assert changes_since(LabDirectory.of("default").path, changed.link_position) == ()


def test_all_nodes_and_both_kinds_of_links(lab: Lab, nodes: Remembered) -> None:
    rates = {"inter_node": "unlimited", "intra_node": "1gbit"}
    changed = change_links(lab.name, "all", rates, probe=False)
    assert nodes.rates == [None, None]
    (change,) = log()
    assert rates_logged(change) == [
        (node, direction, rate)
        for node in ("node0", "node1")
        for direction, rate in (("out", None), ("in", None), ("inside", 1_000_000_000))
    ]
    assert changed.proof == "stale"
    assert change_links(lab.name, "all", {"inter_node": "200mbit"}).proof == "probed"
    assert nodes.rates == [200, 200]
    assert rates_logged(log()[1]) == [
        (node, direction, 200_000_000) for node in ("node0", "node1") for direction in ("out", "in")
    ]


def test_what_is_so_already_is_no_change(lab: Lab) -> None:
    assert change_links(lab.name, "all", {"inter_node": "200mbit"}) == lab
    assert log() == []
    assert open_lab() == lab


def test_while_a_job_runs_nothing_is_measured(lab: Lab) -> None:
    with cluster.lab.in_use(lab, "run r1"):
        changed = change_links(lab.name, "node0", SLOW)
        assert (changed.proof, changed.probe) == ("stale", None)
    assert open_lab() == changed
    assert measure().proof == "probed"
    assert open_lab().spec == changed.spec


def test_links_are_measured_before_they_are_used_where_it_is_due(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proven(lab) is lab
    changed = change_links(lab.name, "node0", SLOW, probe=False)
    assert proven(changed).probe == GOOD
    monkeypatch.setattr(cluster.lab, "run_probe", lambda *_: BAD)
    with pytest.raises(ProbeFailed):
        measure()
    with pytest.raises(ProbeFailed):
        proven(open_lab())
    monkeypatch.setattr(cluster.lab, "run_probe", lambda *_: GOOD)
    assert proven(open_lab()).probe == GOOD
    take_down()
    unmeasured = bring_up(SPEC, probe=False)
    assert proven(unmeasured) is unmeasured
    assert unmeasured.proof == "none"


def test_links_that_do_not_carry_what_was_asked_are_put_back(
    lab: Lab, nodes: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(nodes: Remembered, spec: ClusterSpec) -> int:
        nodes.held = {
            name: spec.with_rates("all", {"inter_node": "3mbit"}).links for name in nodes.held
        }
        with pytest.raises(LabBusy), cluster.lab.in_use(lab, "run r1"):
            pass
        return 3_000_000_000

    monkeypatch.setattr(cluster.lab, "run_probe", lambda *_: BAD)
    monkeypatch.setattr(cluster.links, "carried_rate", searched)
    with pytest.raises(ProbeFailed) as caught:
        change_links(lab.name, "all", {"inter_node": "40gbit"})
    assert "make link NODE=all RATE=3gbit" in caught.value.fix[0]
    assert f"put back, read back: {SPEC.describe()}" in (caught.value.rule or "")
    assert nodes.rates == [200, 200]
    found = open_lab()
    assert replace(found, link_position=0) == lab
    assert changes_since(LabDirectory.of("default").path, found.link_position) == ()
    assert {rate for _, _, rate in rates_logged(log()[-1])} == {200_000_000}


@pytest.mark.parametrize(
    ("node", "rates"),
    [("node7", SLOW), ("all", {"inter_node": "5mbps"}), ("all", {"intra_node": ""})],
)
def test_what_cannot_be_meant_touches_nothing(lab: Lab, node: str, rates: dict[str, str]) -> None:
    for call in (change_links, plan_change):
        with pytest.raises(UnitError):
            call(lab.name, node, rates)
    assert log() == []
    assert open_lab() == lab


def test_a_plan_changes_nothing(lab: Lab, nodes: Remembered) -> None:
    assert plan_change(lab.name, "node1", SLOW) == ("change node1",)
    assert plan_change(lab.name, "all", {"inter_node": "200mbit"}) == ()
    assert (nodes.rates, log(), open_lab()) == ([200, 200], [], lab)


def test_it_waits_for_nobody_who_works_on_the_lab(lab: Lab) -> None:
    with LabDirectory.of(lab.name).locked(), pytest.raises(LabBusy, match="another command"):
        change_links(lab.name, "all", SLOW)
    assert log() == []


def test_a_changed_lab_is_another_one_for_bring_up(lab: Lab) -> None:
    change_links(lab.name, "all", SLOW, probe=False)
    with pytest.raises(LabExists) as caught:
        bring_up(SPEC)
    assert caught.value.seen == (
        "up: 2x2: 2 nodes x 2 ranks, 50mbit (changed by make link); "
        "asked: 2x2: 2 nodes x 2 ranks, 200mbit"
    )
    assert caught.value.fix[0] == "make link NODE=all RATE=200mbit"
    again = bring_up(load_cluster("2x2", "50mbit"))
    assert again.already_up and again.proof == "probed"


@pytest.mark.usefixtures("lab")
def test_link_is_no_way_to_other_nodes_or_packets() -> None:
    for other in (load_cluster("4x1"), load_cluster("slow-node")):
        with pytest.raises(LabExists) as caught:
            bring_up(other)
        assert not any("make link" in fix for fix in caught.value.fix)
        assert other.describe() in (caught.value.seen or "")
    inside = ClusterSpec.from_dict(
        {**SPEC.to_dict(), "links": {**SPEC.to_dict()["links"], "intra_node": {"rate": "1gbit"}}}
    )
    with pytest.raises(LabExists) as caught:
        bring_up(inside)
    assert caught.value.fix[0] == "make link NODE=all RATE=200mbit INTRA_RATE=1gbit"
