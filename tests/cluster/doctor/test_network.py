"""What came of a trial becomes a check: needed or not, named, with its fix."""

import os
import subprocess
from pathlib import Path

import pytest

from cluster import packages
from cluster.doctor import network, trial
from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, Check
from cluster.doctor.network import (
    COMMANDS,
    FEATURES,
    commands_check,
    network_checks,
    wanted_commands,
)
from cluster.doctor.trial import STARTED, STEPS, Outcome, harmless, outcomes, script
from cluster.refusals import APPARMOR
from cluster.spec import load_cluster
from cluster.topology import FabricNetwork, limit_commands, topology_commands

GOOD = Outcome(0, "")
READ_BACK = {
    "tbf": Outcome(0, '[{"kind": "tbf", "options": {"rate": 25000000, "burst": 131050}}]'),
    "congestion": Outcome(0, '[{"dst": "198.18.0.0/15", "metrics": [{"congestion": "cubic"}]}]'),
}
ALL = {STARTED: GOOD, **dict.fromkeys(STEPS, GOOD), **READ_BACK}
UNKNOWN = Outcome(2, "Error: Specified qdisc kind is unknown.")


@pytest.fixture(autouse=True)
def ordinary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(network, "user_name", lambda: "mei")
    monkeypatch.setattr(packages, "OS_RELEASE", str(tmp_path / "os-release"))
    (tmp_path / "os-release").write_text("ID=ubuntu\n")
    folder = tmp_path / os.uname().release
    folder.mkdir()
    (folder / "modules.dep").write_text("kernel/drivers/net/veth.ko:\n")
    monkeypatch.setattr(packages, "KERNEL_MODULES", tmp_path)


def checks(
    missing: tuple[str, ...] = (), netem_for: str = "", **changed: Outcome
) -> dict[str, Check]:
    return {each.name: each for each in network_checks({**ALL, **changed}, missing, netem_for)}


def test_where_all_is_there_every_feature_is_ok() -> None:
    found = checks()
    assert list(found) == ["namespaces", *FEATURES]
    assert {each.state for each in found.values()} == {OK}
    assert all(each.fix == () for each in found.values())
    assert 'user "mei"' in found["namespaces"].seen


@pytest.mark.parametrize("name", ["veth", "bridge", "tbf", "congestion"])
def test_what_no_lab_can_do_without_is_a_fault(name: str) -> None:
    found = checks(**{name: UNKNOWN})
    assert found[name].state == FAULT
    assert "Specified qdisc kind is unknown" in found[name].seen
    (fix,) = found[name].fix
    assert fix.endswith(f"sudo modprobe {FEATURES[name].module}")
    assert fix.startswith("sudo modprobe" if name == "veth" else "sudo apt-get install linux-")
    assert {each.state for key, each in found.items() if key != name} == {OK}


@pytest.mark.parametrize("name", ["netem", "ingress", "u32", "mirred", "ifb"])
def test_what_only_some_things_need_is_no_fault(name: str) -> None:
    found = checks(**{name: UNKNOWN})
    assert found[name].state == NOT_HERE
    purpose = "delay, jitter and loss" if name == "netem" else "into a container"
    assert found[name].seen.startswith("only needed ")
    assert purpose in found[name].seen
    assert FEATURES[name].module in found[name].fix[0]


def test_what_hangs_on_something_else_is_not_blamed() -> None:
    found = checks(ingress=UNKNOWN, u32=UNKNOWN, mirred=UNKNOWN)
    assert found["ingress"].state == NOT_HERE
    assert (found["u32"].state, found["u32"].seen) == (SKIPPED, "not tried: it needs ingress")
    assert found["mirred"].state == SKIPPED


def test_netem_that_was_asked_for_is_needed() -> None:
    found = checks(netem=UNKNOWN, netem_for="CLUSTER=far.yaml")
    assert found["netem"].state == FAULT
    assert found["netem"].seen.startswith("CLUSTER=far.yaml needs it")
    assert checks(netem_for="CLUSTER=far.yaml")["netem"].state == OK


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tbf", '[{"kind": "tbf", "options": {"rate": 3125000}}]'),
        ("tbf", "qdisc tbf 1: root"),
        ("tbf", ""),
        ("congestion", '[{"dst": "198.18.0.0/15", "metrics": [{"congestion": "bbr"}]}]'),
        ("congestion", "[]"),
    ],
)
def test_what_is_not_read_back_as_asked_is_a_fault(name: str, text: str) -> None:
    found = checks(**{name: Outcome(0, text)})[name]
    assert found.state == FAULT
    assert f"read back: {text}" in found.seen


def test_a_missing_command_is_named_and_only_what_needs_it_is_left_out() -> None:
    check = commands_check(("tc",))
    assert (check.state, check.seen) == (FAULT, "no tc on the search path")
    assert check.fix == ("sudo apt-get install iproute2",)
    without = dict.fromkeys([name for name in STEPS if "tc " in STEPS[name]], Outcome(127, "tc"))
    found = checks(("tc",), **without)
    assert found["namespaces"].state == found["veth"].state == OK
    assert {found[name].seen for name in without} == {"not tried: it needs tc"}
    no_ip = checks(("ip",), named=Outcome(127, "sh: ip: not found"))
    assert no_ip["namespaces"].state == no_ip["tbf"].state == OK
    assert no_ip["bridge"].seen == "not tried: it needs ip"
    assert {each.state for each in network_checks({}, ("unshare",))} == {SKIPPED}


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (STARTED, "unshare: write failed /proc/self/uid_map: Operation not permitted"),
        ("folders", "mount: /run: permission denied."),
        ("named", "mount --make-shared /run/netns failed: Permission denied"),
        ("veth", "RTNETLINK answers: Operation not permitted"),
    ],
)
def test_ubuntus_restriction_is_named_wherever_it_strikes(
    step: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "setting").write_text("1\n")
    elsewhere = str(tmp_path / "none")
    monkeypatch.setattr(
        "cluster.holding.setting_path",
        lambda name: str(tmp_path / "setting") if name == APPARMOR else elsewhere,
    )
    found = checks(**{step: Outcome(1, text)})
    assert found["namespaces"].state == FAULT
    assert found["namespaces"].seen.startswith("this Ubuntu does not let user")
    assert f"{APPARMOR} = 1" in found["namespaces"].seen
    assert text in found["namespaces"].seen
    assert found["namespaces"].fix[0].startswith(f"sudo sysctl -w {APPARMOR}=0")
    assert any("PRIVILEGE=sudo" in fix for fix in found["namespaces"].fix)
    assert {found[name].state for name in FEATURES} == {SKIPPED}


def test_sudo_is_a_command_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted_commands("none") == COMMANDS
    assert wanted_commands("sudo") == (*COMMANDS, "sudo")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert wanted_commands("sudo") == COMMANDS


def test_another_failure_of_a_namespace_is_told_as_it_is() -> None:
    found = checks(folders=Outcome(32, "mount: /dev/shm: mount point does not exist."))
    assert found["namespaces"].state == FAULT
    assert "mount point does not exist" in found["namespaces"].seen
    assert "docs/troubleshooting.md#user-namespaces" in found["namespaces"].fix[0]


def test_the_script_keeps_each_outcome_apart() -> None:
    steps = {
        "good": "echo it\\'s here && true",
        "bad": "echo 'no way' >&2; exit 3",
        "after": "printf 'two\\nlines'",
    }
    done = subprocess.run(["sh", "-c", script(steps)], capture_output=True, text=True, check=True)
    assert outcomes(done.stdout) == {
        "good": Outcome(0, "it's here"),
        "bad": Outcome(3, "no way"),
        "after": Outcome(0, "two lines"),
    }


def test_ifb_is_not_tried_where_that_would_add_devices_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Loading its module makes ifb0 and ifb1 in the network of the machine itself."""
    monkeypatch.setattr(trial, "LOADED_MODULES", tmp_path)
    monkeypatch.setattr(trial, "IFB_LOADED", tmp_path)
    assert harmless(STEPS) == (STEPS, {})
    monkeypatch.setattr(trial, "IFB_LOADED", tmp_path / "not loaded")
    steps, known = harmless(STEPS)
    assert set(STEPS) - set(steps) == set(known) == {"ifb"}
    assert not known["ifb"].ok
    listing = tmp_path / os.uname().release / "modules.dep"
    listing.write_text("kernel/drivers/net/ifb.ko.xz:\n")
    assert harmless(STEPS)[1]["ifb"].ok
    assert "was not loaded" in checks(**harmless(STEPS)[1])["ifb"].seen
    assert harmless({"tbf": "x"}) == ({"tbf": "x"}, {})
    monkeypatch.setattr(trial, "LOADED_MODULES", tmp_path / "a kernel without modules")
    assert harmless(STEPS) == (STEPS, {})


def test_all_that_a_lab_is_made_of_is_tried() -> None:
    """A kind of device or limit that a lab uses and the trial does not know would be missed."""
    spec = load_cluster("2x2")
    words = [*topology_commands(spec, FabricNetwork()), *limit_commands(spec, FabricNetwork())]
    kinds = {command[command.index("type") + 1] for command in words if "type" in command}
    kinds |= {command[command.index("1:") + 1] for command in words if "1:" in command}
    assert kinds == {"veth", "bridge", "tbf"} <= set(FEATURES)
    bridge = next(command for command in words if "bridge" in command)
    assert STEPS["bridge"] == " ".join(bridge)
    assert any("congctl" in command for command in words)
