"""Links that change on a lab that is up: idle, while a job runs, and when the change goes wrong.

One lab, with packets of 9,000 bytes and a limit inside its nodes; its tests go in their order.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.spec import LOOPBACK_MTU, payload_ceiling
from jobs.rankplan import measured_links
from tests.jobs.command import valid
from tests.live.host import eventually
from tests.live.lab import SMALL, TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

CLUSTER = """\
name: jumbo
nodes: 2
ranks_per_node: 2
links:
  inter_node: {rate: 200mbit, mtu: 9000}
  intra_node: {rate: 400mbit}
"""
MBIT = 10**6
TIMEOUT_S = 60
STEPS = 50
SETS = ("pace={forward_ms: 10, backward_ms: 20}", *SMALL[:2])


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    home = tmp_path_factory.mktemp("link")
    (home / "jumbo.yaml").write_text(CLUSTER)
    with lab(home, str(home / "jumbo.yaml")) as made:
        yield made


def held(it: TestLab, node: int) -> dict[str, int | None]:
    """What the kernel holds: bits per second of each side of a node, None where it has no limit.

    Asked with tc from inside the lab, through one of its nodes' programs or through its holder.
    """
    name = f"node{node}"
    sides = {"out": (name, "fab0"), "in": (None, f"port{node}"), "inside": (name, "lo")}
    return {side: _rate(qdisc(it, *where)) for side, where in sides.items()}


def qdisc(it: TestLab, node: str | None, device: str) -> dict[str, Any]:
    """The root qdisc of a device as `tc -s -j` tells it; of the lab's own space without a node."""
    inside = ["-n", node] if node else []
    command = ["tc", *inside, "-s", "-j", "-r", "qdisc", "show", "dev", device]
    (root,) = [each for each in json.loads(in_lab(it, *command)) if each.get("root")]
    found: dict[str, Any] = root
    return found


def _rate(found: dict[str, Any]) -> int | None:
    return int(found["options"]["rate"]) * 8 if found["kind"] == "tbf" else None


def in_lab(it: TestLab, *argv: str) -> str:
    """What a command prints in the space in which the lab's bridge is."""
    state = json.loads((directory(it) / "state.json").read_text())
    holder = state["nodes"]["holder"]
    user = ["-U", "--preserve-credentials"] if holder["user_namespace"] else []
    entered = ["nsenter", "-t", str(holder["pid"]), *user, "-m", "-n", *argv]
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    return subprocess.run(
        entered, env=environment, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    ).stdout


def directory(it: TestLab) -> Path:
    return it.home / "state/ddplab" / it.name


def limits(rate: int | None, inside: int | None = 400 * MBIT) -> dict[str, int | None]:
    return {"out": rate, "in": rate, "inside": inside}


def link(it: TestLab, *words: str) -> dict[str, Any]:
    done = it.command("link", "--lab", it.name, "--json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return valid(done.stdout, "link")


def status(it: TestLab) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((directory(it) / "state.json").read_text())
    return state


def probed(it: TestLab, rate: int) -> None:
    """Each link was measured as what it is: its rate, its packets, its inside."""
    report = status(it)["probe"]
    assert report["ok"]
    between = payload_ceiling(rate, 9000)
    inside = payload_ceiling(400 * MBIT, LOOPBACK_MTU)
    for one in report["links"]:
        usual = one["mode"] != "intra_node"
        assert one["configured_bits_per_second"] == (rate if usual else 400 * MBIT)
        if one["mode"] != "both_ways":
            assert one["ceiling_bytes_per_second"] == pytest.approx(between if usual else inside)
        assert one["ratio"] == pytest.approx(1, abs=0.03)


def test_large_packets_and_the_inside_are_limited_and_measured(it: TestLab) -> None:
    assert [held(it, node) for node in range(2)] == [limits(200 * MBIT)] * 2
    for device in (
        ["-n", "node0", "-j", "link", "show", "fab0"],
        ["-j", "link", "show", "fabric0"],
    ):
        (found,) = json.loads(in_lab(it, "ip", *device))
        assert found["mtu"] == 9000
    probed(it, 200 * MBIT)


@dataclass(frozen=True)
class Halved:
    """A run in the middle of which the rate was halved; the qdisc of node0 around the change."""

    answer: dict[str, Any]
    summary: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]


@pytest.fixture(scope="module")
def halved(it: TestLab) -> Halved:
    options = [word for setting in (*SETS, f"train.steps={STEPS}") for word in ("--set", setting)]
    process = it.start("run", "hier", "--lab", it.name, "--json", *options)
    steps = it.runs / "latest/rank0.jsonl"
    try:
        assert eventually(
            lambda: steps.exists() and steps.read_text().count('"kind":"step"') > 5, TIMEOUT_S
        )
        before = qdisc(it, "node0", "fab0")
        answer = link(it, "--node", "all", "--rate", "100mbit")
        after = qdisc(it, "node0", "fab0")
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return Halved(answer, valid(out, "run"), before, after)


def test_a_limit_is_changed_in_place_while_a_job_runs(it: TestLab, halved: Halved) -> None:
    assert [held(it, node) for node in range(2)] == [limits(100 * MBIT)] * 2
    assert (_rate(halved.before), _rate(halved.after)) == (200 * MBIT, 100 * MBIT)
    assert halved.after["handle"] == halved.before["handle"]
    # one made anew would have counted from 0: this one was there all the time
    assert halved.after["bytes"] >= halved.before["bytes"] > 0
    assert halved.summary["run_id"] in halved.answer["in_use"]
    assert (halved.answer["proof"], halved.answer["probe"]) == ("stale", None)


def test_halving_the_rate_splits_the_run_at_that_step(it: TestLab, halved: Halved) -> None:
    summary = halved.summary
    run = json.loads((it.runs / summary["run_id"] / "run.json").read_text())
    assert [(one["node"], one["direction"]) for one in run["link_changes"]] == [
        (node, direction) for node in ("node0", "node1") for direction in ("out", "in")
    ]
    change = run["link_changes"][0]
    before, after = [], []
    for records in zip(*it.steps(summary["run_id"]), strict=True):
        ended_ns = max(one["t_ns"] + round(one["step_s"] * 1e9) for one in records)
        if ended_ns <= change["t_ns"]:
            before.append(records[0]["step"])
        elif min(one["t_ns"] for one in records) >= change["settled_ns"]:
            after.append(records[0]["step"])
    first, second = summary["parts"]
    parts = [list(range(part["first_step"], part["last_step"] + 1)) for part in (first, second)]
    assert parts == [before, after]
    assert (parts[0][0], parts[1][-1]) == (0, STEPS - 1)
    rates = [
        {one["configured_bits_per_second"] for one in part["links"] if one["direction"] != "inside"}
        for part in (first, second)
    ]
    assert rates == [{200 * MBIT}, {100 * MBIT}]
    assert [part["proof"] for part in (first, second)] == ["probed", "stale"]
    assert summary["link"]["proof"] == "stale"


@pytest.mark.usefixtures("halved")
def test_the_next_run_is_predicted_from_a_new_measurement(it: TestLab) -> None:
    changed_at = status(it)["changed_at"]
    summary = it.run("hier", *SETS, "train.steps=2")
    folder = it.runs / summary["run_id"]
    run = json.loads((folder / "run.json").read_text())
    prediction = json.loads((folder / "prediction.json").read_text())
    assert (summary["parts"], summary["link"]["proof"]) == ([], "probed")
    assert run["probe"]["measured_at"] > changed_at
    measured = measured_links(run["probe"], [node["name"] for node in run["lab"]["nodes"]])
    assert measured is not None
    burst = 128 * 1024  # what a lab's link of this rate lets through at once
    assert prediction["inputs"]["links"] == [{**each, "burst_bytes": burst} for each in measured]
    assert summary["predicted"]["error_ratio"] is not None
    probed(it, 100 * MBIT)


def test_one_node_all_nodes_and_no_limit_at_all(it: TestLab) -> None:
    link(it, "--node", "node1", "--rate", "50mbit", "--no-probe")
    assert [held(it, node) for node in range(2)] == [limits(100 * MBIT), limits(50 * MBIT)]
    link(it, "--node", "node1", "--rate", "unlimited", "--intra-rate", "unlimited", "--no-probe")
    assert [held(it, node) for node in range(2)] == [limits(100 * MBIT), limits(None, None)]
    commands = it.command("link", "--lab", it.name, "--node", "all", "--rate=300mbit", "--dry-run")
    planned = commands.stdout.splitlines()
    assert planned[0].startswith(
        "tc -n node0 qdisc replace dev fab0 root handle 1: tbf rate 300000000bit"
    )
    assert len(planned) == 4
    assert [held(it, node) for node in range(2)] == [limits(100 * MBIT), limits(None, None)]
    link(it, "--node", "all", "--rate", "300mbit", "--intra-rate", "400mbit", "--no-probe")
    assert [held(it, node) for node in range(2)] == [limits(300 * MBIT)] * 2

    done = it.command(
        *("up", "--backend", "netns", "--lab", it.name, "--cluster", str(it.home / "jumbo.yaml"))
    )
    assert done.returncode == 1
    words = " ".join(done.stderr.split())
    assert "300mbit, mtu 9000, inside a node 400mbit (changed by make link)" in words
    assert "asked: jumbo: 2 nodes x 2 ranks, 200mbit, mtu 9000" in words
    assert f"make link NODE=all RATE=200mbit INTRA_RATE=400mbit LAB={it.name}" in words


def fake_tc(it: TestLab, body: str) -> dict[str, str]:
    """An environment in which tc does this instead; `real "$@"` is the real one."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    tools = it.home / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "tc").write_text(
        f'#!/bin/sh\nreal() {{ {shutil.which("tc", path=path)} "$@"; }}\n{body}\n'
    )
    (tools / "tc").chmod(0o755)
    return {**it.environment(), "PATH": f"{tools}:{path}"}


def start_link(it: TestLab, environment: dict[str, str], *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", "link", "--lab", it.name, "--no-probe", *words],
        cwd=it.home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_change_that_fails_half_way_is_taken_back(it: TestLab) -> None:
    before = [held(it, node) for node in range(2)]
    changed = before[0]
    refusing = (
        'case "$*" in *port1*70000000bit*) echo "no such thing" >&2; exit 2;; esac; real "$@"'
    )
    process = start_link(it, fake_tc(it, refusing), "--node", "all", "--rate", "70mbit")
    _, err = process.communicate(timeout=TIMEOUT_S)
    words = " ".join(err.split())
    assert process.returncode == 1
    assert "the links could not be changed: a command in the lab failed: tc qdisc replace" in words
    assert "the limits are as they were, read back" in words
    assert [held(it, node) for node in range(2)] == before == [changed] * 2
    assert status(it)["pending"] is None


def test_a_link_that_is_killed_half_way_is_taken_back_by_the_next_command(it: TestLab) -> None:
    before = [held(it, node) for node in range(2)]
    marker = it.home / "first"
    slow = f'real "$@" || exit; case "$*" in *replace*) touch {marker}; sleep 60;; esac'
    process = start_link(it, fake_tc(it, slow), "--node", "all", "--rate", "70mbit")
    try:
        assert eventually(marker.exists, TIMEOUT_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert held(it, 0)["out"] == 70 * MBIT
    assert held(it, 0)["in"] == before[0]["in"]
    done = it.command("status", "--lab", it.name, "--json")
    assert done.returncode == 0, done.stderr
    assert [held(it, node) for node in range(2)] == before
    assert status(it)["pending"] is None
    assert status(it)["spec"]["links"]["inter_node"]["rate"] == "300mbit"
