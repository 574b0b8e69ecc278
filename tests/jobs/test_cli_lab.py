"""The verbs about a lab, under --json and for people; the cluster package is stood in for."""

import json
from dataclasses import replace
from typing import Any

import pytest

import cluster.lab
from cluster.errors import NoLab, ProbeFailed
from cluster.lab import Lab, LabEvent
from tests.jobs.command import call, valid

pytestmark = pytest.mark.usefixtures("own_folder")


def test_probe_prints_the_contract(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.lab, "measure", lambda _name: lab)
    code, out, _ = call(capsys, "probe", "--json")
    assert code == 0
    report = valid(out, "probe")
    assert report["ok"] is True
    assert {link["mode"] for link in report["links"]} == {"one_way", "both_ways", "intra_node"}
    code, out, _ = call(capsys, "probe")
    assert code == 0
    assert "node0 -> node1" in out


def test_a_bad_link_is_told_as_a_measurement_and_fails(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.probe is not None
    bad = replace(lab.probe.links[0], measured_bytes_per_second=2e7, ratio=0.84)
    report = replace(lab.probe, links=(bad, *lab.probe.links[1:]))

    def measure(_name: str) -> Lab:
        object.__setattr__(lab, "probe", report)
        raise ProbeFailed("node0 -> node1 carries too little")

    monkeypatch.setattr(cluster.lab, "measure", measure)
    code, out, _ = call(capsys, "probe", "--json")
    assert code == 1
    assert valid(out, "probe")["ok"] is False
    code, out, err = call(capsys, "probe")
    assert code == 1
    assert "ddplab: node0 -> node1 carries too little" in err


def test_up_shows_its_steps_and_what_is_next(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring_up(spec: Any, name: str, *_rest: Any) -> Lab:
        on_event = _rest[-1]
        for step in ("start", "limit", "measure"):
            on_event(LabEvent(step))
            on_event(LabEvent(step, 0.1))
        return replace(lab, spec=spec, name=name)

    monkeypatch.setattr(cluster.lab, "bring_up", bring_up)
    code, out, err = call(capsys, "up", "--rate", "100mbit", "--lab", "mine")
    assert (code, err) == (0, "")
    assert 'Lab "mine": 2 nodes x 2 ranks' in out
    assert "100 Mbit/s out of and into each node" in out
    assert "make run JOB=hier LAB=mine" in out
    code, out, err = call(capsys, "up", "--json")
    assert code == 0
    assert json.loads(out)["nodes"][1]["name"] == "node1"
    assert "limit" in err


def test_up_twice_says_so(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = replace(lab, already_up=True)
    monkeypatch.setattr(cluster.lab, "bring_up", lambda *_: up)
    code, out, _ = call(capsys, "up")
    assert code == 0
    assert 'Lab "default" is already up, measured at' in out


@pytest.mark.parametrize("rate", ["1gbps", "200mib", "0mbit", "-5mbit", "1e6", "fast"])
def test_up_refuses_rates_that_are_none_or_two(
    capsys: pytest.CaptureFixture[str], rate: str
) -> None:
    code, out, _ = call(capsys, "up", f"--rate={rate}", "--json")
    assert code == 1
    assert rate in valid(out, "error")["error"]["message"]


@pytest.mark.parametrize(
    ("option", "value", "near"),
    [("--cluster", "2x3", "2x2"), ("--backend", "netsn", "netns"), ("--privilege", "sud", "sudo")],
)
def test_up_names_the_nearest(
    capsys: pytest.CaptureFixture[str], option: str, value: str, near: str
) -> None:
    code, out, _ = call(capsys, "up", option, value, "--json")
    error = valid(out, "error")["error"]
    assert code == 1
    assert value in error["message"]
    assert near in str(error["fix"])


def test_dry_run_prints_commands_and_makes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "up", "--dry-run", "--cluster", "2x2", "--rate", "300mbit")
    assert code == 0
    assert "tbf" in out
    assert "fabric0" in out
    code, out, _ = call(capsys, "status", "--json")
    assert json.loads(out) == {"schema": 1, "labs": []}


def test_down_says_what_went(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.lab, "take_down", lambda _name: lab)
    code, out, _ = call(capsys, "down")
    assert code == 0
    assert 'Lab "default" is down' in out
    code, out, _ = call(capsys, "down", "--json")
    assert json.loads(out) == {"schema": 1, "lab": "default", "down": True}


def test_ctrl_c_outside_a_run_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_name: str) -> Lab:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.lab, "open_lab", interrupted)
    code, _, err = call(capsys, "probe")
    assert (code, err) == (130, "\nddplab: stopped by you\n")


def test_a_lab_that_is_gone_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_name: str) -> Lab:
        raise NoLab('lab "default" is not up', None, "make cluster-up", seen="its holder has ended")

    monkeypatch.setattr(cluster.lab, "open_lab", gone)
    code, _, err = call(capsys, "run", "hier")
    assert code == 1
    assert "  seen    its holder has ended" in err
    assert "  fix     make cluster-up" in err
