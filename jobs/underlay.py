"""The lab beneath a job while it runs: in use by it alone, its links as it says, its end told.

On machines that no lab limits there is nothing to hold, to compare or to follow.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cluster.held import require_limited
from cluster.lab import DEFAULT_LAB, Lab, how_it_ended, in_use
from cluster.linklog import LinkChange
from cluster.site import Attached, Site
from cluster.state import Use
from jobs.errors import JobError, RunFailed
from jobs.linkchanges import LinkChanges
from jobs.runfolder import RunFolder


class Underlay:
    """Made by `underlay_of`; all of it does nothing where there is no lab."""

    def __init__(self, held: tuple[Lab, Use] | None) -> None:
        self._held = held
        self._changes = LinkChanges(held[0]) if held else None

    def tell(self, what: str) -> None:
        """Says who uses the lab, to those who are refused."""
        if self._held:
            self._held[1].tell(what)

    def require_limited(self) -> None:
        """Raises ShapingError where the kernel holds another limit than the lab says."""
        if self._held:
            require_limited(self._held[0])

    def changes(self, runs: Iterable[tuple[RunFolder, dict[str, Any]]]) -> tuple[LinkChange, ...]:
        """What is new of the links: written into every run.json, and returned."""
        return self._changes.keep(runs) if self._changes else ()

    def end(self) -> JobError | None:
        """Where the lab is no longer there: how it ended."""
        if self._held is None:
            return None
        lab, use = self._held
        if use.lab_taken_down:
            return RunFailed("the lab was taken down while the job ran", fix="make cluster-up")
        ending = how_it_ended(lab)
        if ending is None:
            return None
        return RunFailed(
            f"the lab is gone: {ending}",
            rule="a lab ends with any part of it, and every node and rank with it",
            fix="make cluster-up",
        )


def lost_fix(site: Site) -> str:
    """What a person does about a node that was lost while a job ran."""
    if not isinstance(site, Attached):
        return "make cluster-status"
    if site.underlay is None:
        return "look at what Ray says of its nodes: ray status"
    name = site.underlay.name
    return "make ray-up" + ("" if name == DEFAULT_LAB else f" LAB={name}")


@contextmanager
def underlay_of(site: Site, what: str) -> Iterator[Underlay]:
    """The site's lab for one job alone. Raises LabBusy, naming who uses it, and NoLab."""
    if site.underlay is None:
        yield Underlay(None)
        return
    with in_use(site.underlay, what) as use:
        yield Underlay((site.underlay, use))
