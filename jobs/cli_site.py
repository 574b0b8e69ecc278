"""Where run, compare and scale run: the lab, or a Ray cluster that somebody else brought up."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from jobs.errors import LaunchError
from jobs.verbs import CommandLineError

if TYPE_CHECKING:
    from cluster.rayhosts.attach import RayAsked
    from cluster.site import Site

RAY, DEFAULT_LAB = "ray", "default"
OF_RAY = ("address", "fabric", "nodes", "ranks_per_node", "strategy")
"""Options that say which machines of a Ray cluster are used; a lab is taken as it is."""

_address_option = click.option(
    "--address", help="Ray's own address, such as 10.0.0.1:6379; else the one inside the lab."
)
_fabric_option = click.option(
    "--fabric", help="The NIC that gradients cross on every node: eth1, or 10.0.0.0/24."
)
_nodes_option = click.option("--nodes", type=click.IntRange(1), help="So many of Ray's nodes.")
_ranks_option = click.option("--ranks-per-node", type=click.IntRange(1), help="Ranks on each.")
_strategy_option = click.option(
    "--strategy", help="spread (a node has one bundle), pack, or the nodes: 10.0.0.1,10.0.0.2."
)
_backend_option = click.option(
    "--backend", help="ray: on a Ray cluster; else the lab as it is, whatever its nodes are."
)


Command = Callable[..., Any]


def on_ray(command: Command) -> Command:
    """Options that say which machines of a Ray cluster, and which of their NICs."""
    for option in (_strategy_option, _ranks_option, _fabric_option, _address_option):
        command = option(command)
    return command


def site_options(command: Command) -> Command:
    """All the options that `SiteAsked.of` reads, together, for a job that runs in one place."""
    return _backend_option(on_ray(_nodes_option(command)))


@dataclass(frozen=True)
class SiteAsked:
    """Where a job is to run, as it was typed."""

    lab: str
    backend: str | None
    of_ray: Mapping[str, Any]
    """Those of OF_RAY that were given."""

    @classmethod
    def of(cls, lab: str | None, options: Mapping[str, Any]) -> "SiteAsked":
        """Raises CommandLineError for what says something of Ray without BACKEND=ray."""
        given = {name: options[name] for name in OF_RAY if options.get(name) is not None}
        asked = cls(DEFAULT_LAB if lab is None else lab, options.get("backend"), given)
        if given and not asked.on_ray:
            names = ", ".join(name.upper() for name in given)
            raise CommandLineError(
                f"{names} without BACKEND=ray",
                rule="a lab is taken as it is, with all of its nodes",
                fix="BACKEND=ray, or leave it out",
            )
        return asked

    @property
    def on_ray(self) -> bool:
        return self.backend == RAY

    def ray(self, **changes: Any) -> "RayAsked":
        """The Ray cluster that is meant."""
        from cluster.rayhosts.attach import RayAsked

        return replace(RayAsked(lab=self.lab, **self.of_ray), **changes)


@contextmanager
def opened_site(
    asked: SiteAsked, check: "Callable[[Site], None]", as_json: bool
) -> "Iterator[Site]":
    """Where the job runs, its links measured or about to be; `check` comes before what takes time.

    Raises ClusterError or JobError where it is not there, or not as asked.
    """
    if asked.on_ray:
        from cluster.rayhosts.attach import attached

        with attached(asked.ray()) as cluster:
            check(cluster)
            yield cluster
        return
    from cluster.lab import open_lab
    from jobs.cli_link import lab_to_run_on

    lab = open_lab(asked.lab)
    if asked.backend not in (None, "auto", lab.backend):
        raise LaunchError(
            f'BACKEND={asked.backend}, but the nodes of lab "{lab.name}" are of {lab.backend}',
            rule="a lab is taken as it is",
            fix="leave BACKEND out, or make another lab: "
            f"make cluster-up BACKEND={asked.backend} LAB={asked.backend}",
        )
    check(lab)
    yield lab_to_run_on(lab, as_json)
