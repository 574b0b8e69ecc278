"""Whether a container is still the node that it was made as."""

from typing import Any

import pytest

from cluster.compose.nodes import how_ended, is_mounted
from cluster.nodes import Node

NODE = Node("node1", 1, "198.18.0.3", "eth0")
MOUNTS = r"""
21 20 0:25 / /proc rw,nosuid - proc proc rw
30 20 8:1 /home/a/w /home/a/w ro,relatime master:1 - ext4 /dev/sda1 rw
31 30 8:1 /home/a/w/my\040runs /home/a/w/my\040runs rw,relatime master:1 - ext4 /dev/sda1 rw
32 20 8:1 /real//deleted /real rw,relatime master:1 - ext4 /dev/sda1 rw
33 20 8:1 /b\134s /b\134s rw,relatime master:1 - ext4 /dev/sda1 rw
""".strip()


@pytest.mark.parametrize(
    ("folder", "held"),
    [
        ("/home/a/w", True),
        ("/home/a/w/my runs", True),
        ("/b\\s", True),
        ("/home/a/w/runs", False),  # unmounted as it was removed: what lies under it shows
        ("/real", False),
        ("/home/a", False),
    ],
)
def test_a_folder_that_was_removed_outside_is_told_from_one_that_is_there(
    folder: str, held: bool
) -> None:
    assert is_mounted(folder, MOUNTS) is held


def container(started: str = "now", running: bool = True, *addresses: str) -> dict[str, Any]:
    networks = {f"net{i}": {"IPAddress": address} for i, address in enumerate(addresses)}
    return {
        "State": {"Running": running, "StartedAt": started},
        "NetworkSettings": {"Networks": networks},
    }


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "the container of node1 has ended"),
        (container("now", False, NODE.address), "the container of node1 has ended"),
        (container("later", True, NODE.address), "the container of node1 was started again"),
        (container("now", True), "the container of node1 was taken off its network"),
        (container("now", True, "198.18.0.33"), "the container of node1 was taken off its network"),
        (container("now", True, "10.0.0.9", NODE.address), None),
    ],
)
def test_a_node_is_what_it_was_made_as_or_says_what_became_of_it(
    found: dict[str, Any] | None, told: str | None
) -> None:
    assert how_ended(NODE, found, "now") == told
