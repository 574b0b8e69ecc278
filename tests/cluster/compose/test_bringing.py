"""Nodes that a person started are taken as they are, or not at all."""

import json
from ipaddress import IPv4Network
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.compose.bringing import bring
from cluster.compose.engine import HOME_LABEL
from cluster.compose.file import BY_HAND
from cluster.compose.project import Project
from cluster.errors import HostError, LabExists, ShapingError
from cluster.nodes import Making
from cluster.spec import load_cluster

SPEC = load_cluster("2x2")
COMPLAINT = {"message": "not understood: ValueError: 'x'"}


def by_hand(num_nodes: int = 2, **settings: str) -> Project:
    """A project of nodes with these settings, each of which may use one processor."""
    environ = {"DDPLAB_MTU": "1500", "DDPLAB_SUBNET": "10.9.0.0/24", **settings}
    container = {
        "Id": "0123",
        "Config": {
            "Labels": {HOME_LABEL: BY_HAND},
            "Env": ["ALONE", *(f"{name}={text}" for name, text in environ.items())],
        },
        "HostConfig": {"NanoCpus": 10**9},
    }
    stand_in: Any = SimpleNamespace(
        name="ddplab",
        home="/lab",
        nodes=lambda: [container] * num_nodes,
        engine=SimpleNamespace(log_tail=lambda _: json.dumps(COMPLAINT)),
    )
    return cast(Project, stand_in)


@pytest.mark.parametrize(
    ("project", "making", "seen"),
    [
        (by_hand(3), Making(), "up: 3 nodes, mtu 1500, subnet 10.9.0.0/24; asked: 2, "),
        (by_hand(DDPLAB_MTU="9000"), Making(), "mtu 9000, subnet 10.9.0.0/24; asked: 2, 1500, "),
        (by_hand(DDPLAB_MTU="x"), Making(), "mtu x, "),
        (by_hand(), Making(subnet=IPv4Network("10.8.0.0/24")), "asked: 2, 1500, 10.8.0.0/24"),
    ],
)
def test_others_than_asked_for_are_told_with_both(
    project: Project, making: Making, seen: str
) -> None:
    with pytest.raises(LabExists, match="started by hand, and are others") as caught:
        bring(project, making, SPEC)
    assert seen in str(caught.value.seen)


@pytest.mark.parametrize("making", [Making(), Making(subnet=IPv4Network("10.9.0.0/24"))])
def test_those_that_are_as_asked_for_are_looked_at_next(making: Making) -> None:
    project = by_hand()
    with pytest.raises(ShapingError, match="not limited to nothing"):  # they are, to a processor
        bring(project, making, SPEC)
    assert project.home == BY_HAND


def test_what_such_a_node_could_not_read_it_says_itself() -> None:
    with pytest.raises(HostError) as caught:
        bring(by_hand(DDPLAB_SUBNET="x"), Making(), SPEC)
    assert caught.value.message == COMPLAINT["message"]
