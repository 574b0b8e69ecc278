"""Nodes that do not run the same software are refused, in a table with every node's values."""

from typing import Any

import pytest

from cluster.errors import NodesDiffer
from cluster.rayhosts.differences import require_same_software

SAME = {
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "ray": "2.60.0",
    "ddplab": "0.1.0",
    "sources": "0a1b2c3d4e5f",
}


def refused(second: dict[str, Any], here: dict[str, Any] | None = None) -> NodesDiffer:
    with pytest.raises(NodesDiffer) as caught:
        require_same_software([("node0", SAME), ("node1", SAME | second)], SAME | (here or {}))
    return caught.value


def test_the_same_is_the_same() -> None:
    require_same_software([("node0", SAME), ("node1", dict(SAME))], SAME)


@pytest.mark.parametrize(
    ("key", "value"),
    [("python", "3.11.9"), ("torch", "2.13.0"), ("ray", "2.59.0"), ("ddplab", "0.2.0")],
)
def test_one_difference_names_both_nodes_and_both_values(key: str, value: str) -> None:
    error = refused({key: value})
    assert error.message == f"nodes do not run the same software: {key}"
    rows = [line.split() for line in (error.seen or "").splitlines()]
    assert rows[:3] == [[key], ["node0", SAME[key]], ["node1", value]]


def test_changed_sources_of_one_version_are_a_difference() -> None:
    assert "node1  ffffffffffff" in (refused({"sources": "ffffffffffff"}).seen or "")


def test_what_is_missing_is_named_with_its_node_and_the_fix() -> None:
    error = refused({"ddplab": None, "sources": None})
    assert "node1  not installed  not installed" in (error.seen or "")
    assert error.fix == ("install what node1 lacks, with the Python that its Ray runs with",)


def test_all_nodes_may_lack_it() -> None:
    bare = SAME | {"torch": None}
    with pytest.raises(NodesDiffer, match="torch"):
        require_same_software([("node0", bare), ("node1", bare)], SAME)


def test_the_launcher_counts_for_what_it_speaks_with() -> None:
    error = refused({}, here={"sources": "eeeeeeeeeeee"})
    assert "here   eeeeeeeeeeee" in (error.seen or "")
    require_same_software([("node0", SAME)], SAME | {"torch": None, "python": "3.12.1"})
