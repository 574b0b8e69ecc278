"""The verbs about a lab, under --json and for people; the cluster package is stood in for."""

import json
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

import cluster.lab
from cluster.backends import BACKENDS, Chosen
from cluster.compose.backend import COMPOSE
from cluster.errors import NoLab, ProbeFailed
from cluster.lab import Lab, LabEvent
from cluster.netns import NETNS
from cluster.nodes import Making
from tests.jobs.command import call, valid
from tests.jobs.samples import flat

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
        on_event(LabEvent("choose", 0.0, Chosen(NETNS)))
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


def test_up_asks_for_what_was_typed(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Making] = []

    def bring_up(_spec: Any, _name: str, making: Making, *_rest: Any) -> Lab:
        asked.append(making)
        return replace(lab, already_up=True)

    monkeypatch.setattr(cluster.lab, "bring_up", bring_up)
    assert call(capsys, "up")[0] == 0
    assert call(capsys, "up", "--backend=netns", "--subnet=10.99.0.0/24")[0] == 0
    runs = Path("runs").absolute()
    assert asked == [
        Making(runs=runs),
        Making("netns", subnet=IPv4Network("10.99.0.0/24"), runs=runs),
    ]
    code, _, err = call(capsys, "up", "--monitoring")
    assert asked[-1].monitoring
    assert code == 1  # it is up already, without
    assert "make cluster-down && make cluster-up MONITORING=1" in err


def test_up_tells_what_auto_took_and_why(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "Docker 20.10 and Compose 2.26 answer"

    def bring_up(*arguments: Any) -> Lab:
        on_event = arguments[-1]
        on_event(LabEvent("choose", 0.0, Chosen(COMPOSE, why)))
        on_event(LabEvent("image"))
        on_event(LabEvent("image", 95.2))
        on_event(LabEvent("start"))
        on_event(LabEvent("start", 1.5))
        return replace(lab, backend="compose")

    monkeypatch.setattr(cluster.lab, "bring_up", bring_up)
    code, out, _ = call(capsys, "up")
    assert code == 0
    assert f"in containers on this machine (BACKEND=auto took compose: {why})" in flat(out)
    first, second = (line for line in out.splitlines() if line.startswith("  image "))
    assert "is made, or got, once: about 2 minutes" in first
    assert second.endswith("95.2 s")
    assert "Your own network settings" not in out
    code, out, _ = call(capsys, "up", "--json")
    answer = json.loads(out)
    assert (answer["backend"], answer["backend_reason"]) == ("compose", why)
    monkeypatch.setattr(cluster.lab, "bring_up", lambda *_: replace(lab, already_up=True))
    answer = json.loads(call(capsys, "up", "--json")[1])
    assert (answer["backend"], answer["backend_reason"]) == ("netns", None)
    assert answer["monitoring"] == {}


def test_help_names_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("up", "scale"):
        words = flat(call(capsys, verb, "--help")[1])
        for backend in BACKENDS.values():
            assert f"{backend.name} ({backend.summary})" in words


@pytest.mark.parametrize("rate", ["1gbps", "200mib", "0mbit", "-5mbit", "1e6", "fast"])
def test_up_refuses_rates_that_are_none_or_two(
    capsys: pytest.CaptureFixture[str], rate: str
) -> None:
    code, out, _ = call(capsys, "up", f"--rate={rate}", "--json")
    assert code == 1
    assert rate in valid(out, "error")["error"]["message"]


@pytest.mark.parametrize(
    ("option", "value", "near"),
    [
        ("--cluster", "2x3", "2x2"),
        ("--backend", "netsn", "netns"),
        ("--backend", "docker-compose", "compose"),
        ("--privilege", "sud", "sudo"),
        ("--subnet", "10.99.0.7/24", "SUBNET=10.99.0.0/24"),
    ],
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
    code, out, _ = call(
        capsys, "up", "--backend=netns", "--dry-run", "--cluster", "2x2", "--rate", "300mbit"
    )
    assert code == 0
    assert "tbf" in out
    assert "fabric0" in out
    code, out, _ = call(capsys, "status", "--json")
    assert json.loads(out) == {"schema": 1, "labs": []}


def test_a_dry_run_refuses_what_the_backend_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lab.yaml").write_text(
        "name: small\nnodes: 2\nranks_per_node: 1\nlimits: {cpus: 1.5}\n"
        "links: {inter_node: {rate: 1gbit}}\n"
    )
    for words, message, fix in (
        (["--cluster", "lab.yaml"], "limited to 1.5 cpus", "BACKEND=compose"),
        (["--monitoring"], "Prometheus", "BACKEND=compose"),
        (["--subnet", "10.99.0.0/29"], "has no room for 2 nodes", "SUBNET=10.99.0.0/28"),
    ):
        code, out, _ = call(capsys, "up", "--dry-run", "--backend=netns", "--json", *words)
        error = valid(out, "error")["error"]
        assert code == 1
        assert message in error["message"]
        assert fix in error["fix"]


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
