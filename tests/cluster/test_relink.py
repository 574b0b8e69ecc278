"""A change of links that goes wrong at any point: all as it was, or the error says what stands."""

from dataclasses import replace
from typing import Any

import pytest

import cluster.lab
import cluster.links
import cluster.relink
from cluster.errors import CommandFailed, ShapingError
from cluster.kept import Lab, write_lab
from cluster.lab import open_lab, take_down
from cluster.links import change_links
from cluster.nodes import Node
from cluster.spec import ClusterSpec, LinksSpec
from cluster.state import LabDirectory
from tests.cluster.remembered import BAD, SLOW, SPEC, Remembered, log, rates_logged


def test_limits_that_somebody_else_changed_are_set_again(lab: Lab, nodes: Remembered) -> None:
    nodes.held["node1"] = SPEC.with_rates("all", SLOW).links
    assert change_links(lab.name, "all", {"inter_node": "200mbit"}, probe=False).proof == "stale"
    assert nodes.rates == [200, 200]
    (change,) = log()
    assert ("node1", "out", 200_000_000) in rates_logged(change)


@pytest.mark.parametrize("fault", [CommandFailed("no", seen="why"), KeyboardInterrupt()])
@pytest.mark.parametrize("node", ["node0", "node1"])
def test_a_change_that_fails_is_taken_back(
    lab: Lab, nodes: Remembered, node: str, fault: BaseException
) -> None:
    nodes.refusing = {node: fault}
    wanted = KeyboardInterrupt if isinstance(fault, KeyboardInterrupt) else ShapingError
    with pytest.raises(wanted) as caught:
        change_links(lab.name, "all", SLOW)
    assert nodes.rates == [200, 200]
    assert replace(open_lab(), link_position=0) == lab  # measured as before: the same limits stand
    (change,) = log()
    assert change.settled_ns is not None
    assert {rate for _, _, rate in rates_logged(change)} == {200_000_000}
    if isinstance(caught.value, ShapingError):
        assert caught.value.seen == "why"
        assert "as they were" in (caught.value.rule or "")
    assert change_links(lab.name, "all", SLOW).proof == "probed"
    assert nodes.rates == [50, 50]


@pytest.mark.parametrize("killed", [False, True])
def test_only_the_nodes_that_were_to_change_are_logged_as_taken_back(
    lab: Lab, nodes: Remembered, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    nodes.refusing = {"node1": CommandFailed("no")}
    with monkeypatch.context() as dying:
        if killed:
            dying.setattr(cluster.relink, "mend", lambda *_: None)
        with pytest.raises(ShapingError):
            change_links(lab.name, "node1", SLOW)
    open_lab()
    (change,) = log()
    assert change.settled_ns is not None
    assert rates_logged(change) == [("node1", "out", 200_000_000), ("node1", "in", 200_000_000)]


def test_where_it_cannot_be_taken_back_the_error_says_what_stands(
    lab: Lab, nodes: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SPEC.with_rates("all", {"inter_node": "7mbit"}).links

    def wrong(self: Remembered, node: Node, links: LinksSpec) -> None:
        del links
        self.held[node.name] = other
        if node.name == "node1":
            raise CommandFailed("tc failed")

    with monkeypatch.context() as broken:
        broken.setattr(Remembered, "shape", wrong)
        with pytest.raises(ShapingError, match="half changed") as caught:
            change_links(lab.name, "all", SLOW)
        for words in ("node0 out 7mbit", "node1 in 7mbit", "node1 inside unlimited"):
            assert words in (caught.value.seen or "")
        with pytest.raises(ShapingError, match="half changed"):
            open_lab()  # nothing uses such a lab
        assert log()[-1].settled_ns is None
    assert replace(open_lab(), link_position=0) == lab  # the next command put it right
    assert nodes.rates == [200, 200]
    assert log()[-1].settled_ns is not None


def test_a_lab_that_is_half_changed_can_be_taken_down(lab: Lab, nodes: Remembered) -> None:
    nodes.refusing, nodes.forever = {"node1": CommandFailed("tc failed")}, True
    write_lab(replace(lab, pending=SPEC.with_rates("all", SLOW)), LabDirectory.of(lab.name))
    nodes.held["node1"] = SPEC.with_rates("all", SLOW).links
    with pytest.raises(ShapingError):
        open_lab()
    take_down()
    assert not nodes.alive


@pytest.mark.parametrize("done", [0, 1, 2])
def test_the_next_command_takes_back_what_a_killed_one_began(
    lab: Lab, nodes: Remembered, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """`done` nodes were changed when it died."""

    class Killed(BaseException): ...

    nodes.refusing = dict(list({"node0": Killed(), "node1": Killed()}.items())[done:])
    with monkeypatch.context() as dying:
        dying.setattr(cluster.relink, "mend", lambda *_: None)
        dying.setattr(cluster.relink, "log_settled", _raise(Killed()))
        with pytest.raises(Killed):
            change_links(lab.name, "all", SLOW)
    assert nodes.rates == [50] * done + [200] * (2 - done)
    nodes.refusing = {}
    (begun,) = log()
    assert begun.settled_ns is None
    assert {rate for _, _, rate in rates_logged(begun)} == {50_000_000}

    found = open_lab()
    assert nodes.rates == [200, 200]
    assert (found.spec, found.probe, found.pending) == (lab.spec, lab.probe, None)
    (settled,) = log()
    assert settled.t_ns == begun.t_ns and settled.settled_ns is not None
    assert {rate for _, _, rate in rates_logged(settled)} == {200_000_000}
    assert open_lab() == found


def _raise(fault: BaseException) -> Any:
    def raising(*_: object) -> None:
        raise fault

    return raising


def test_a_search_that_is_killed_leaves_the_rates_that_were_asked(
    lab: Lab, nodes: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(nodes: Remembered, spec: ClusterSpec) -> int:
        nodes.held["node0"] = spec.with_rates("all", {"inter_node": "3mbit"}).links
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.lab, "run_probe", lambda *_: BAD)
    monkeypatch.setattr(cluster.links, "carried_rate", killed)
    with pytest.raises(KeyboardInterrupt):
        change_links(lab.name, "all", SLOW)
    assert nodes.rates == [3, 50]
    assert open_lab().spec == SPEC.with_rates("all", SLOW)
    assert nodes.rates == [50, 50]
