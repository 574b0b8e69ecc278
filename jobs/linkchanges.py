"""Links that change while a run goes on: kept in its run.json, and where they split it.

run.json holds `link_changes`, oldest first, [] while there are none; `make link` adds one entry for
each node and direction that it sets, all of one command with the same times:

    {"t_ns": 81234567890,         CLOCK_MONOTONIC as the first limit was changed
     "settled_ns": 81240000000,   CLOCK_MONOTONIC when all were read back; null: the command died on
                                  the way, and until it is not null nobody knows which limit stands
     "wall_ns": 1796036400000000000,         wall clock of t_ns
     "node": "node1", "direction": "out",    or "in": its NIC; "inside": traffic within the node
     "configured_bits_per_second": 50000000} as read back (as asked where settled_ns is null);
                                             null: not limited

It holds until the next entry of the same node and direction; before the first one, what run.json
says of the lab. An entry may repeat the rate that was there: a change that was taken back. No step
number is kept: which step a change fell into follows from the records (`t_ns` of a record is the
start of its step on the same clock). Anything measured before t_ns is stale after it.
"""

from collections.abc import Iterable
from typing import Any

from cluster.lab import Lab
from cluster.linklog import LinkChange, changes_since
from cluster.state import LabDirectory
from jobs.runfolder import RunFolder


class LinkChanges:
    """Reads along what is done to a lab's links, from where `lab` was read."""

    def __init__(self, lab: Lab) -> None:
        self._directory = LabDirectory.of(lab.name).path
        self._position = lab.link_position
        self._seen: tuple[LinkChange, ...] = ()

    def keep(self, runs: Iterable[tuple[RunFolder, dict[str, Any]]]) -> tuple[LinkChange, ...]:
        """Writes what is new into every run.json; returns it, () where there is nothing new."""
        changes = changes_since(self._directory, self._position)
        if not changes or changes == self._seen:  # none, or the lab is gone
            return ()
        new = tuple(change for change in changes if change not in self._seen)
        self._seen = changes
        entries = [entry for change in changes for entry in _entries(change)]
        for folder, run in runs:
            run["link_changes"] = entries
            folder.write("run.json", run)
        return new


def _entries(change: LinkChange) -> list[dict[str, Any]]:
    times = {"t_ns": change.t_ns, "settled_ns": change.settled_ns, "wall_ns": change.wall_ns}
    return [
        {
            **times,
            "node": rate.node,
            "direction": rate.direction,
            "configured_bits_per_second": rate.configured_bits_per_second,
        }
        for rate in change.rates
    ]
