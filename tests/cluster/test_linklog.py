"""The log of a lab's link changes: what a reader makes of it, whole or cut off."""

from pathlib import Path

import pytest

from cluster.linklog import LOG_FILE, LinkRate, changes_since, log_begun, log_settled

ASKED = [LinkRate("node1", "out", 50_000_000), LinkRate("node1", "in", None)]
OTHER = [LinkRate("node0", "inside", 8_000)]


def test_a_change_is_what_was_asked_until_it_is_settled(tmp_path: Path) -> None:
    assert changes_since(tmp_path, 0) == ()
    log_begun(tmp_path, ASKED)
    (begun,) = changes_since(tmp_path, 0)
    assert (begun.settled_ns, begun.rates) == (None, tuple(ASKED))
    log_settled(tmp_path, OTHER)
    (settled,) = changes_since(tmp_path, 0)
    assert (settled.t_ns, settled.wall_ns) == (begun.t_ns, begun.wall_ns)
    assert settled.rates == tuple(OTHER)
    assert settled.settled_ns is not None and settled.settled_ns >= settled.t_ns


def test_a_position_leaves_out_what_is_known(tmp_path: Path) -> None:
    log_begun(tmp_path, ASKED)
    position = log_settled(tmp_path, ASKED)
    assert changes_since(tmp_path, position) == ()
    log_begun(tmp_path, OTHER)
    (new,) = changes_since(tmp_path, position)
    assert new.rates == tuple(OTHER)
    assert changes_since(tmp_path, log_settled(tmp_path, OTHER)) == ()
    assert [change.rates for change in changes_since(tmp_path, 0)] == [tuple(ASKED), tuple(OTHER)]


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_that_was_cut_off_says_nothing(tmp_path: Path, kept: int) -> None:
    """Of `begun`: nothing was touched yet. Of `settled`: nobody knows what stands."""
    log_begun(tmp_path, ASKED)
    begun = (tmp_path / LOG_FILE).read_bytes()
    (tmp_path / LOG_FILE).write_bytes(begun[:kept])
    assert changes_since(tmp_path, 0) == ()
    log_begun(tmp_path, OTHER)
    log_settled(tmp_path, OTHER)
    # -1 takes away the newline alone: the line is whole again once it is ended
    whole = [tuple(ASKED)] if kept == -1 else []
    assert [it.rates for it in changes_since(tmp_path, 0)] == [*whole, tuple(OTHER)]

    before = len((tmp_path / LOG_FILE).read_bytes())
    log_begun(tmp_path, ASKED)
    log_settled(tmp_path, ASKED)
    content = (tmp_path / LOG_FILE).read_bytes()
    (tmp_path / LOG_FILE).write_bytes(content[:-5])
    (unsettled,) = changes_since(tmp_path, before)
    assert unsettled.settled_ns is None
