"""Which backend a check is about, and so whether a lab can do without."""

import pytest

from cluster.backends import BACKENDS
from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, Check
from cluster.doctor.needs import ONLY_FOR, PURPOSES, likely_backend, weighed


def test_every_backend_has_its_checks() -> None:
    assert set(ONLY_FOR) == set(PURPOSES) == set(BACKENDS)


@pytest.mark.parametrize(
    ("name", "state", "backend", "counts"),
    [
        ("namespaces", FAULT, "netns", FAULT),
        ("namespaces", FAULT, "compose", NOT_HERE),
        ("namespaces", OK, "compose", OK),
        ("container", NOT_HERE, "netns", NOT_HERE),
        ("container", NOT_HERE, "compose", FAULT),
        ("container", SKIPPED, "compose", SKIPPED),
        ("disk", FAULT, "compose", FAULT),
        ("netem", NOT_HERE, "netns", NOT_HERE),
    ],
)
def test_what_is_a_fault_depends_on_the_backend(
    name: str, state: str, backend: str, counts: str
) -> None:
    assert weighed(Check(name, state, "seen", ("fix",)), backend).state == counts


def test_words_say_what_it_is_for() -> None:
    check = weighed(Check("veth", FAULT, "the kernel has none", ("modprobe veth",)), "compose")
    assert check.seen == "only needed for labs of network namespaces; the kernel has none"
    assert check.fix == ("modprobe veth",)
    lacking = f"ddplab-node:1: no ifb: {PURPOSES['compose']}; Unknown device type."
    check = weighed(Check("container", NOT_HERE, lacking), "compose")
    assert check.seen == "ddplab-node:1: no ifb; Unknown device type."


def test_what_is_likely_before_there_is_an_environment() -> None:
    docker, compose = Check("docker", OK, "engine 28.2"), Check("compose", OK, "Compose 2.26")
    both = likely_backend({"docker": docker, "compose": compose})
    assert both.seen == "BACKEND=auto takes compose: engine 28.2 and Compose 2.26"
    dead = docker._replace(state=NOT_HERE, seen="the engine does not answer")
    found = likely_backend({"docker": dead, "compose": compose})
    assert found.seen == "BACKEND=auto takes netns: the engine does not answer"
    assert "takes netns" in likely_backend({}).seen
