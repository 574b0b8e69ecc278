"""The order of bring_up and take_down, with a backend that only writes down what it is told."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

import cluster.backends
import cluster.kept
from cluster import lab
from cluster.errors import ClusterError, LabBusy, LabExists, NoLab, ProbeFailed
from cluster.lab import LabEvent, bring_up, measure, open_lab, take_down
from cluster.nodes import Backend, Node, NodeFacts, NodeProcess, Nodes
from cluster.probe import LinkMeasurement, ProbeReport
from cluster.spec import ClusterSpec, LinksSpec, load_cluster
from cluster.state import LabDirectory

SPEC = load_cluster("2x2")
GOOD = ProbeReport((LinkMeasurement("node0", "node1", "one_way", 8, 1.0, 1.0, 1.0, 0.1),), 7.0)
BAD = ProbeReport((replace(GOOD.links[0], ratio=0.5),), 8.0)


class Recorder:
    """A backend's nodes that exist only as a list of what was asked for."""

    python = "python3"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.fails_at: str | None = None
        self.fault: BaseException = KeyboardInterrupt()
        self.alive = False

    def _say(self, word: str) -> None:
        self.said.append(word)
        if word == self.fails_at:
            raise self.fault

    def list(self) -> tuple[Node, ...]:
        return tuple(Node(f"node{k}", k, f"198.18.0.{10 + k}", "fab0") for k in range(2))

    def exec(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> NodeProcess:
        raise NotImplementedError

    def facts(self, node: Node) -> NodeFacts:
        raise NotImplementedError

    def up(self, spec: ClusterSpec) -> None:
        del spec
        self.alive = True
        self._say("up")

    def keep(self) -> None:
        self._say("keep")

    def shape(self, node: Node, links: LinksSpec) -> None:
        del links
        self._say(f"shape {node.name}")

    def shape_plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        raise NotImplementedError

    def limits(self, node: Node) -> Mapping[str, int | None]:
        raise NotImplementedError

    def down(self) -> None:
        self.alive = False
        self.said.append("down")

    def save(self) -> dict[str, Any]:
        self._say("save")
        return {}


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

    backend = Backend("netns", "", lambda *_: recorder, attach, lambda _: ())
    monkeypatch.setattr(cluster.backends, "NETNS", backend)
    monkeypatch.setattr(cluster.backends, "BACKENDS", {"netns": backend})
    monkeypatch.setattr(cluster.kept, "BACKENDS", {"netns": backend})
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
    assert [(event.step, event.seconds is None) for event in events] == [
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


def test_whether_it_is_still_the_same_lab(nodes: Recorder) -> None:
    made = bring_up(SPEC, probe=False)
    assert lab.is_up(made)
    take_down()
    assert not lab.is_up(made)
    bring_up(SPEC, probe=False)
    assert not lab.is_up(made)
    nodes.alive = False
    assert not lab.is_up(made)


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
        bring_up(SPEC, backend="netsn")
    assert 'did you mean "netns"?' in caught.value.fix[0]
    with pytest.raises(ClusterError, match="unknown privilege"):
        bring_up(SPEC, privilege="root")
    assert LabDirectory.names() == ()
