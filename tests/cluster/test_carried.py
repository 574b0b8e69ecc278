"""The highest rate that is carried: searched on nodes that carry what the test says they do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import carried
from cluster.carried import carried_rate, highest, is_too_slow, ladder, limited, rate_advice
from cluster.doctor import rate
from cluster.doctor.checks import FAULT, OK, SKIPPED
from cluster.doctor.rate import judged, rate_check
from cluster.errors import ClusterError, HostError
from cluster.netns import NETNS
from cluster.nodes import Node, Place
from cluster.probe import LinkMeasurement, ProbeReport, require_carried
from cluster.probe_plan import Flow, Mode
from cluster.probe_run import Measured
from cluster.spec import ClusterSpec, LinksSpec, load_cluster
from cluster.state import LabDirectory
from cluster.topology import FabricNetwork

GBIT = 1_000_000_000
SPEC = load_cluster("2x2")


class Machine:
    """Nodes and their probe's ends: carries `free` without a limit, and no limit above `honest`."""

    def __init__(self, spec: ClusterSpec, free: float, honest: float) -> None:
        self.spec, self.free, self.honest = spec, free, honest
        self.tried: list[int | None] = []
        self.flows: list[int] = []
        self.stumbles = 0

    def list(self) -> tuple[Node, ...]:
        return FabricNetwork().nodes(self.spec)

    def shape(self, node: Node, links: LinksSpec) -> None:
        if node.index == 0:
            self.tried.append(links.inter_node.rate_bits_per_s)

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, flows: Sequence[Flow]) -> Mapping[Flow, Measured]:
        assert {flow.mode for flow in flows} == {Mode.BOTH_WAYS}
        self.flows.append(len(flows))
        if self.stumbles:
            self.stumbles -= 1
            return {flow: Measured((flow.ceiling_bytes_per_s or 0) * 0.9, 0) for flow in flows}
        return {flow: Measured(self._carries(flow), 0) for flow in flows}

    def _carries(self, flow: Flow) -> float:
        if flow.rate_bits_per_s is None:
            return self.free / 8
        share = 1 if flow.rate_bits_per_s <= self.honest else 0.6
        return (flow.ceiling_bytes_per_s or 0) * share


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def make(spec: ClusterSpec = SPEC, free: float = 7e9, honest: float = 3.2e9) -> Machine:
        made = Machine(spec, free, honest)
        monkeypatch.setattr(carried, "ProbeEnds", lambda _nodes: made)
        return made

    return make


@pytest.mark.parametrize(
    ("honest", "expected"),
    [(3.2e9, 3 * GBIT), (6.6e9, 6 * GBIT), (4.1e8, 400_000_000), (5e8, 500_000_000), (3e8, None)],
)
def test_finds_the_highest_round_rate(
    machine: Callable[..., Any], honest: float, expected: int | None
) -> None:
    made = machine(honest=honest)
    assert carried_rate(made, SPEC) == expected
    assert made.tried[0] is None
    assert len(made.tried) <= 6


def test_all_links_are_full_at_once(machine: Callable[..., Any]) -> None:
    spec = load_cluster("4x1")
    made = machine(spec)
    carried_rate(made, spec)
    assert set(made.flows) == {4}


def test_one_stumble_of_a_busy_machine_does_not_count(machine: Callable[..., Any]) -> None:
    made = machine(honest=1e12)
    made.stumbles = 1
    assert carried._is_carried(made, made, limited(SPEC, GBIT))
    made.stumbles = 2
    assert not carried._is_carried(made, made, limited(SPEC, GBIT))


def test_nodes_stay_as_they_are_but_for_the_rate() -> None:
    data = {
        **SPEC.to_dict(),
        "links": {"inter_node": {"rate": "200mbit", "mtu": 9000, "delay": "5ms", "loss": "1%"}},
        "overrides": {"node1": {"inter_node": {"rate": "50mbit", "mtu": 1400}}},
    }
    spec = limited(ClusterSpec.from_dict(data), GBIT)
    links = [spec.links_of(name).inter_node for name in spec.node_names]
    assert [(link.rate_bits_per_s, link.mtu) for link in links] == [(GBIT, 9000), (GBIT, 1400)]
    assert not any(link.needs_netem for link in links)
    assert limited(spec, None).links_of("node1").inter_node.rate_bits_per_s is None


def test_rates_that_are_tried_are_round() -> None:
    assert ladder(0.9e6, 2.2e6) == [1_000_000, 1_500_000, 2_000_000]
    assert ladder(7.9e8, 1.6e9) == [800_000_000, 1_000_000_000, 1_500_000_000]
    assert ladder(1, 10) == []


def test_the_last_that_holds_of_any_number() -> None:
    for size in range(6):
        for last in range(size + 1):
            found = highest(range(size), lambda value, last=last: value < last)
            assert found == (last - 1 if last else None)


def link(ratio: float, mode: Mode, rate: int) -> LinkMeasurement:
    return LinkMeasurement("node0", "node1", mode, rate, ratio * rate / 8, rate / 8, ratio, 0.1)


@pytest.mark.parametrize(
    ("spec", "lab", "expected"),
    [
        (load_cluster("2x2", "40gbit"), "default", "make cluster-up RATE=3gbit"),
        (load_cluster("4x1", "40gbit"), "default", "make cluster-up CLUSTER=4x1 RATE=3gbit"),
        (load_cluster("2x2", "40gbit"), "b", "make cluster-up LAB=b RATE=3gbit"),
        (
            ClusterSpec.from_dict({**load_cluster("2x2", "40gbit").to_dict(), "name": "mine"}),
            "default",
            "make cluster-up CLUSTER=... RATE=3gbit",
        ),
    ],
)
def test_the_advice_can_be_typed(
    machine: Callable[..., Any], spec: ClusterSpec, lab: str, expected: str
) -> None:
    report = ProbeReport((link(0.3, Mode.BOTH_WAYS, 40 * GBIT),), 0)
    assert is_too_slow(report)
    advice = rate_advice(report, machine(spec), spec, lab)
    assert advice == f"this machine carries up to about 3gbit: {expected}"
    with pytest.raises(ClusterError) as caught:
        require_carried(report, advice)
    assert caught.value.fix[0] == advice
    assert "limit 40gbit" in caught.value.message


def test_advice_where_asking_for_less_is_not_the_way(machine: Callable[..., Any]) -> None:
    slow = ProbeReport((link(0.3, Mode.ONE_WAY, 2 * GBIT),), 0)
    assert str(rate_advice(slow, machine(), SPEC, "default")).endswith("a moment later: try again")
    own = ProbeReport((link(0.3, Mode.ONE_WAY, 40 * GBIT),), 0)
    assert "overrides" in str(rate_advice(own, machine(), SPEC, "default"))
    assert "no rate" in str(rate_advice(own, machine(honest=1), SPEC, "default"))


def test_an_inside_that_is_too_slow_is_not_searched_for_and_is_told_its_key() -> None:
    inside = ProbeReport((link(0.3, Mode.INTRA_NODE, 40 * GBIT),), 0)
    assert not is_too_slow(inside)
    with pytest.raises(ClusterError) as caught:
        require_carried(inside)
    assert caught.value.fix[0].startswith("links.intra_node.rate: 10gbit")
    fast = replace(link(1.3, Mode.ONE_WAY, GBIT), ratio=1.3)
    assert not is_too_slow(ProbeReport((fast,), 0))


@pytest.mark.parametrize(
    ("rate", "found", "state"),
    [("200mbit", 3 * GBIT, OK), ("3gbit", 3 * GBIT, OK), ("5gbit", 3 * GBIT, FAULT)],
)
def test_what_is_asked_for_is_held_against_what_is_carried(
    rate: str, found: int, state: str
) -> None:
    check = judged(load_cluster("2x2", rate), found, load=0.1, num_cores=2)
    assert check.state == state
    assert check.seen.startswith("links of 2 nodes carry up to about 3gbit each, both ways")
    assert (check.fix[:1] == ("RATE=3gbit",)) == (state == FAULT)
    assert "busy" not in check.seen
    assert "load 9.0 on 2 cores" in judged(SPEC, found, load=9.0, num_cores=2).seen
    assert judged(SPEC, None, load=0.1, num_cores=2).state == FAULT


def test_what_is_made_for_measuring_is_no_lab(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    seen: list[Any] = []

    class Made:
        def __init__(self, place: Place) -> None:
            privilege = place.making.privilege
            seen.append((place.directory.parent, place.directory.name[0], privilege))

        def up(self, spec: ClusterSpec) -> None:
            seen.append((spec.nodes, LabDirectory.all_names()))

        def down(self) -> None:
            seen.append("down")

    monkeypatch.setattr(carried, "NETNS", replace(NETNS, create=Made))
    monkeypatch.setattr(carried, "carried_rate", lambda *_: GBIT)
    assert carried.carried_here(SPEC, "sudo") == GBIT
    assert seen == [(tmp_path / "ddplab", ".", "sudo"), (2, ()), "down"]


def test_a_lab_that_is_in_use_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "list_labs", lambda: ("a", "b"))
    monkeypatch.setattr(rate, "user_of", {"a": None, "b": "run x (process 7)"}.get)
    monkeypatch.setattr(rate, "carried_here", lambda *_: pytest.fail("it was measured"))
    check = rate_check(SPEC)
    assert check.state == SKIPPED
    assert 'lab "b": run x (process 7)' in check.seen
    alone = rate_check(load_cluster("2x2").model_copy(update={"nodes": 1}))
    assert (alone.state, alone.seen) == (SKIPPED, "one node has no link to another")


def test_a_lab_that_does_not_come_up_is_a_fault_with_its_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> int:
        raise HostError("no", None, "mend it", seen="it broke")

    monkeypatch.setattr(rate, "list_labs", lambda: ())
    monkeypatch.setattr(rate, "carried_here", refused)
    check = rate_check(SPEC)
    assert (check.state, check.fix) == (FAULT, ("mend it",))
    assert check.seen.endswith("no; it broke")
