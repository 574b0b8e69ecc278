"""The order of bring_up and take_down, with a backend that only writes down what it is told."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from cluster import lab
from cluster.errors import ClusterError, HostError, LabBusy, LabExists, NoLab, ProbeFailed
from cluster.lab import LabEvent, bring_up, measure, open_lab, take_down
from cluster.nodes import Making, Nodes, Place
from cluster.probe import LinkMeasurement, ProbeReport
from cluster.spec import ClusterSpec, load_cluster
from cluster.state import LabDirectory
from tests.cluster.recorder import Recorder
from tests.cluster.remembered import backend_of, only

SPEC = load_cluster("2x2")
GOOD = ProbeReport((LinkMeasurement("node0", "node1", "one_way", 8, 1.0, 1.0, 1.0, 0.1),), 7.0)
BAD = ProbeReport((replace(GOOD.links[0], ratio=0.5),), 8.0)


@pytest.fixture(autouse=True)
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    recorder = Recorder()

    def attach(_directory: Path, _saved: Mapping[str, Any]) -> Recorder:
        if not recorder.alive:
            raise NoLab("the process it lived in has ended")
        return recorder

    def probed(_nodes: Nodes, _spec: ClusterSpec) -> ProbeReport:
        recorder._say("probe")
        return GOOD

    other = backend_of("other", lambda *_: pytest.fail("it is not asked for"), attach)
    only(monkeypatch, backend_of("netns", lambda *_: recorder, attach), other)
    monkeypatch.setattr(lab, "run_probe", probed)
    monkeypatch.setattr(lab, "rate_advice", lambda *_: "make cluster-up RATE=4gbit")
    return recorder


ORDER = ["up", "shape node0", "shape node1", "probe", "save", "keep"]


def test_a_lab_that_is_not_to_last_stays_tied_to_this_process(nodes: Recorder) -> None:
    made = bring_up(SPEC, "a", lasting=False)
    assert nodes.said == ORDER[:-1]
    assert open_lab("a").spec == made.spec  # and is found by name like any other
    take_down("a")
    assert nodes.said[-1] == "down"


def test_measures_before_it_keeps_anything(nodes: Recorder) -> None:
    events: list[LabEvent] = []
    made = bring_up(SPEC, on_event=events.append)
    assert nodes.said == ORDER
    assert made.probe == GOOD and not made.already_up
    assert events[0].step == "choose"
    assert events[0].chosen is not None and events[0].chosen.backend.name == "netns"
    assert [(event.step, event.seconds is None) for event in events[1:]] == [
        (step, begins) for step in ("start", "limit", "measure") for begins in (True, False)
    ]


def test_finds_what_it_made() -> None:
    made = bring_up(SPEC, "one")
    found = open_lab("one")
    assert found == made
    assert lab.list_labs() == ("one",)


@pytest.mark.parametrize("step", ORDER)
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), ClusterError("no")])
def test_an_end_at_any_step_leaves_nothing(
    nodes: Recorder, step: str, fault: BaseException
) -> None:
    nodes.fails_at, nodes.fault = step, fault
    with pytest.raises(type(fault)):
        bring_up(SPEC)
    assert nodes.said[-1] == "down"
    assert lab.list_labs() == ()
    assert not LabDirectory.of("default").path.exists()
    with pytest.raises(NoLab):
        open_lab()


def test_a_bad_link_leaves_nothing(nodes: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "run_probe", lambda *_: BAD)
    with pytest.raises(ProbeFailed):
        bring_up(SPEC)
    assert nodes.said[-1] == "down"
    assert lab.list_labs() == ()


def test_the_same_again_is_fine_and_says_so(nodes: Recorder) -> None:
    bring_up(SPEC)
    nodes.said.clear()
    again = bring_up(ClusterSpec.from_dict({**SPEC.to_dict(), "name": "other-name"}))
    assert again.already_up and again.probe == GOOD
    assert nodes.said == []


def test_the_same_again_measures_what_was_not() -> None:
    bring_up(SPEC, probe=False)
    assert open_lab().probe is None
    assert bring_up(SPEC, probe=False).probe is None
    assert bring_up(SPEC).already_up
    assert open_lab().probe == GOOD


def test_another_specification_is_refused_naming_both(nodes: Recorder) -> None:
    bring_up(SPEC)
    for other in (load_cluster("4x1"), load_cluster("2x2", "50mbit")):
        with pytest.raises(LabExists) as caught:
            bring_up(other)
        seen = caught.value.seen
        assert seen is not None and SPEC.describe() in seen and other.describe() in seen
    assert nodes.alive


def test_another_subnet_or_backend_is_refused_naming_both(nodes: Recorder) -> None:
    bring_up(SPEC)
    for making, asked in (
        (Making(subnet=IPv4Network("10.99.0.0/24")), "subnet 10.99.0.0/24"),
        (Making("other"), "backend other"),
    ):
        with pytest.raises(LabExists) as caught:
            bring_up(SPEC, making=making)
        assert caught.value.seen is not None and caught.value.seen.endswith(f"asked: {asked}")
    assert nodes.alive
    assert bring_up(SPEC, making=Making(subnet=IPv4Network("198.18.0.0/24"))).already_up


def test_a_step_of_what_auto_took_that_fails_names_the_others(nodes: Recorder) -> None:
    nodes.fails_at, nodes.fault = "up", HostError("it broke", None, "mend it")
    with pytest.raises(HostError) as caught:
        bring_up(SPEC)
    assert caught.value.fix == ("mend it", "BACKEND=other     in words")
    nodes.fault = HostError("it broke", None, "mend it")
    with pytest.raises(HostError) as caught:
        bring_up(SPEC, making=Making("netns"))
    assert caught.value.fix == ("mend it",)


def test_what_labs_share_is_made_before_the_nodes_and_told_where_it_takes_time(
    nodes: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(_place: Place, timed: Callable[[], AbstractContextManager[None]]) -> None:
        with timed():
            nodes.said.append("image")

    backend = backend_of("netns", lambda _place: nodes, lambda *_: nodes)
    only(monkeypatch, replace(backend, prepare=prepare))
    events: list[LabEvent] = []
    bring_up(SPEC, on_event=events.append)
    assert nodes.said == ["image", *ORDER]
    assert [event.step for event in events[:4]] == ["choose", "image", "image", "start"]


def test_labs_of_other_names_are_left_alone() -> None:
    bring_up(SPEC, "a")
    bring_up(load_cluster("4x1"), "ab")
    take_down("a")
    assert lab.list_labs() == ("ab",)


def test_taking_down_what_is_not_there(nodes: Recorder) -> None:
    with pytest.raises(NoLab) as caught:
        take_down("none")
    assert "make cluster-up LAB=none" in caught.value.fix[0]
    assert not LabDirectory.of("none").path.exists()
    assert nodes.said == []


def test_a_dead_lab_is_recognised_and_its_state_removed(nodes: Recorder) -> None:
    for use in (open_lab, take_down, measure):
        bring_up(SPEC)
        nodes.alive = False
        with pytest.raises(NoLab):
            use()
        assert lab.list_labs() == ()
    bring_up(SPEC)
    assert open_lab().probe == GOOD


def test_a_bad_measurement_is_kept_and_refused(
    nodes: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(SPEC)
    monkeypatch.setattr(lab, "run_probe", lambda *_: BAD)
    with pytest.raises(ProbeFailed):
        measure()
    assert open_lab().probe == BAD
    assert nodes.alive


def test_one_user_at_a_time_and_no_measuring_meanwhile() -> None:
    made = bring_up(SPEC, "one", probe=False)
    with lab.in_use(made, "run r1") as use:
        for other in (
            lambda: measure("one"),
            lambda: bring_up(SPEC, "one"),  # finds it unmeasured
            lambda: lab.in_use(made, "run r2").__enter__(),
        ):
            with pytest.raises(LabBusy) as caught:
                other()
            assert "run r1" in (caught.value.seen or "")
        assert "run r1" in (lab.user_of("one") or "")
        assert bring_up(SPEC, "one", probe=False).already_up
        assert not use.lab_taken_down
        take_down("one")  # its user is told, not asked
        assert use.lab_taken_down
    with pytest.raises(NoLab), lab.in_use(made, "run r3"):
        pass
    assert lab.list_labs() == ()
    assert not LabDirectory.of("one").path.exists()


def test_measuring_is_a_use_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bring_up(SPEC)
    seen = []

    def probed(*_: object) -> ProbeReport:
        with pytest.raises(LabBusy) as caught, lab.in_use(made, "run r1"):
            pass
        seen.append(caught.value.seen)
        return GOOD

    monkeypatch.setattr(lab, "run_probe", probed)
    monkeypatch.setattr(lab, "rate_advice", lambda *_: "make cluster-up RATE=4gbit")
    measure()
    assert "being measured" in seen[0]
    assert lab.user_of("default") is None


def test_what_became_of_a_lab(nodes: Recorder) -> None:
    made = bring_up(SPEC, probe=False)
    assert lab.how_it_ended(made) is None
    take_down()
    assert lab.how_it_ended(made) == 'lab "default" is not up'
    bring_up(SPEC, probe=False)
    assert lab.how_it_ended(made) == "it was taken down, and another one of its name is up"
    nodes.alive = False
    assert lab.how_it_ended(made) == "the process it lived in has ended"


def test_a_lab_that_is_coming_up_is_busy_and_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def probed(*_: object) -> ProbeReport:
        for use in (open_lab, take_down, measure):
            with pytest.raises(LabBusy):
                use()
            tried.append(use)
        return GOOD

    monkeypatch.setattr(lab, "run_probe", probed)
    monkeypatch.setattr(lab, "rate_advice", lambda *_: "make cluster-up RATE=4gbit")
    bring_up(SPEC)
    assert len(tried) == 3


def test_unknown_backends_and_privileges_are_refused() -> None:
    with pytest.raises(ClusterError, match="unknown backend 'netsn'") as caught:
        bring_up(SPEC, making=Making("netsn"))
    assert 'did you mean "netns"?' in caught.value.fix[0]
    with pytest.raises(ClusterError, match="unknown privilege"):
        bring_up(SPEC, making=Making(privilege="root"))
    assert LabDirectory.names() == ()
