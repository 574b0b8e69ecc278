"""Where each size of a plan runs: on a lab made for it alone, or on nodes of a Ray cluster.

Owns what is made for a size, and that it is gone afterwards. Nothing of a Ray cluster is brought up
or taken down.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.backends import Chosen, naming_others
from cluster.errors import ClusterError, LabError
from cluster.lab import OnEvent, bring_up, list_labs, open_lab, take_down
from cluster.nodes import Making
from cluster.site import Site
from cluster.spec import ClusterSpec
from jobs.scale.plan import Size
from jobs.stopping import Stopped, stop_signals

LABEL = "scale"


class Places(Protocol):
    """Something to run every size on."""

    @property
    def after_a_stop(self) -> str:
        """What became of it when a size was stopped."""

    def clear(self) -> None:
        """Removes what an earlier one that was killed left."""

    def at(
        self, size: Size, cluster: ClusterSpec, on_event: OnEvent
    ) -> AbstractContextManager[Site]:
        """The place of one size, inside the block only."""


@dataclass(frozen=True)
class LabChoice:
    """A lab for each size, all made with the same backend; see cluster.lab.bring_up."""

    chosen: Chosen
    making: Making

    after_a_stop = "its lab was taken down"

    @property
    def settled(self) -> Making:
        """With what was chosen in the place of `auto`."""
        return replace(self.making, backend=self.chosen.backend.name)

    def clear(self) -> None:
        """Labs of a scale that was killed ended with it, their directories did not."""
        for name in list_labs():
            if name.startswith(f"{LABEL}-"):
                with suppress(ClusterError):  # another one's, that is just coming up
                    open_lab(name)

    @contextmanager
    def at(self, size: Size, cluster: ClusterSpec, on_event: OnEvent) -> Iterator[Site]:
        """A lab of this process alone: gone with it, however it ends."""
        name = f"{LABEL}-{size}-{os.getpid()}"
        with naming_others(self.chosen, cluster, self.making):
            lab = bring_up(cluster, name, self.settled, on_event=on_event, lasting=False)
        try:
            yield lab
        finally:
            with stop_signals() as stop:  # an impatient second Ctrl-C comes after it
                with suppress(LabError):  # it was taken down, or died, under us
                    take_down(name)
                lab.nodes.down()
            stop.tell(_end)


@dataclass(frozen=True)
class OnCluster:
    """Some nodes of a cluster for each size; `attach(size)` lends them."""

    attach: Callable[[Size], AbstractContextManager[Site]]

    after_a_stop = "the cluster is as it was"

    def clear(self) -> None:
        """Nothing of a cluster of others is ours to remove."""

    def at(
        self, size: Size, cluster: ClusterSpec, on_event: OnEvent
    ) -> AbstractContextManager[Site]:
        """Links are as they are; nothing is made."""
        del cluster, on_event
        return self.attach(size)


def _end(name: str) -> None:
    raise Stopped(name)
