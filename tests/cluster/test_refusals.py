"""Why a machine refuses namespaces: the setting that does it is named, and what helps."""

import pytest

from cluster.batch import batch_error, missing_qdisc
from cluster.errors import CommandFailed, HostError, MissingQdisc, NamespacesRefused
from cluster.refusals import APPARMOR, CLONE, LIMITS, MAX_NAMESPACES, explain_refusal

FULL = "unshare: unshare failed: No space left on device"
SEEN = "ip link add: Operation not permitted"


@pytest.mark.parametrize(
    ("settings", "headline", "fix"),
    [
        ({APPARMOR: "1"}, "this Ubuntu does not let", f"sudo sysctl -w {APPARMOR}=0"),
        ({CLONE: "0", APPARMOR: "0"}, "this kernel does not let", f"sudo sysctl -w {CLONE}=1"),
        ({}, "this machine does not let", "make cluster-up PRIVILEGE=sudo"),
    ],
)
def test_names_the_setting_and_its_switch(
    settings: dict[str, str], headline: str, fix: str
) -> None:
    error = explain_refusal(SEEN, "mei", False, settings)
    assert error.message.startswith(headline)
    assert '"mei"' in error.message
    assert error.seen is not None and SEEN in error.seen
    for name, value in settings.items():
        if name in error.fix[0]:
            assert f"{name} = {value}" in error.seen
    assert error.rule is not None and "yours are not touched" in error.rule
    assert error.fix[0].startswith(fix)
    assert any("PRIVILEGE=sudo" in line and "runs as mei" in line for line in error.fix)


@pytest.mark.parametrize("name", LIMITS)
def test_names_the_limit_that_is_reached_for_which_sudo_is_no_way_out(name: str) -> None:
    """The kernel counts root's namespaces too, so that PRIVILEGE=sudo would fail as well."""
    many = dict.fromkeys(LIMITS, "10000")
    error = explain_refusal(FULL, "mei", False, {**many, name: "0", APPARMOR: "1"})
    assert error.fix == (f"sudo sysctl -w {name}=10000     until the next reboot",)
    assert error.seen is not None and error.seen.endswith(f"{name} = 0")
    error = explain_refusal(FULL, "mei", False, {**many, name: "9"})
    assert error.seen is not None and error.seen.endswith(f"{name} = 9")


def test_a_limit_holds_root_too_but_for_users_namespaces() -> None:
    error = explain_refusal(FULL, "root", True, {"user.max_net_namespaces": "0"})
    assert error.fix == ("sysctl -w user.max_net_namespaces=10000     until the next reboot",)
    error = explain_refusal(SEEN, "root", True, {MAX_NAMESPACES: "0"})
    assert "container" in error.message


def test_a_limit_that_is_not_reached_is_not_blamed() -> None:
    error = explain_refusal(SEEN, "mei", False, dict.fromkeys(LIMITS, "9"))
    assert error.seen is not None and "user.max" not in error.seen


def test_other_backends_are_offered_last() -> None:
    error = explain_refusal(SEEN, "mei", False, {APPARMOR: "1"}, ["make cluster-up BACKEND=x"])
    assert error.fix[-1] == "make cluster-up BACKEND=x"


def test_root_is_told_about_its_container() -> None:
    error = explain_refusal(SEEN, "root", True, {APPARMOR: "1"})
    assert "container" in error.message
    assert not any("sudo" in line for line in error.fix)


COMMANDS = [
    ["ip", "netns", "add", "node0"],
    ["tc", "-n", "node0", "qdisc", "replace", "dev", "fab0", "root", "netem", "delay", "10ms"],
    ["tc", "qdisc", "replace", "dev", "port0", "root", "handle", "1:", "tbf", "rate", "8bit"],
    ["ip", "link", "add", "fabric0", "type", "bridge"],
]


@pytest.mark.parametrize(
    ("number", "text", "kind", "part"),
    [
        (1, "Error: Specified qdisc kind is unknown.", MissingQdisc, "sch_netem"),
        (2, 'Unknown qdisc "tbf", hence option', MissingQdisc, "sch_tbf"),
        (3, "Error: Unknown device type.", HostError, "type bridge"),
        (3, "RTNETLINK answers: Operation not permitted", NamespacesRefused, "private network"),
        (0, "Cannot create namespace file: File exists", CommandFailed, "ip netns add node0"),
    ],
)
def test_what_a_failed_command_says(
    number: int, text: str, kind: type[HostError], part: str
) -> None:
    error = batch_error(COMMANDS, f"{text}\n\x1e{number}\n")
    assert type(error) is kind
    assert part in error.message


def test_a_lab_that_cannot_be_entered() -> None:
    error = batch_error(COMMANDS, "nsenter: reassociate to namespace: No such process\n")
    assert isinstance(error, CommandFailed)
    assert error.seen is not None and "No such process" in error.seen


def test_a_missing_qdisc_is_named_with_what_it_is_for() -> None:
    error = missing_qdisc("netem")
    assert "sch_netem" in error.message and "delay" in error.message
    assert "modprobe sch_netem" in error.fix[0]
