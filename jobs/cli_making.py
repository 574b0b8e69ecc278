"""The options of the verbs that make labs: of what nodes are made, where, and as whom."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cluster.nodes import Making

RUNS = Path("runs")


class BackendOption(click.Option):
    """Its help is made of the registry of backends, which is slow to import: when it is read."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from cluster.backends import AUTO, BACKENDS

        kinds = ", ".join(f"{each.name} ({each.summary})" for each in BACKENDS.values())
        self.help = f"How nodes are made: {AUTO}, {kinds}."
        return super().get_help_record(ctx)


backend_option = click.option(
    "--backend", cls=BackendOption, default="auto", help="How nodes are made."
)
privilege_option = click.option(
    "--privilege", default="none", help="none, or sudo: asks for your password."
)
algorithm_option = click.option(
    "--algorithm", help="A name, or one of your own: my.py:build, my_pkg.module:build."
)
also_algorithm_option = click.option(
    "--algorithm", help="Also the first of the jobs with this one: a name, or my.py:build."
)
subnet_option = click.option(
    "--subnet", help="Addresses of the network between nodes, such as 10.99.0.0/24."
)
monitoring_option = click.option(
    "--monitoring", is_flag=True, help="Also Prometheus and Grafana, beside nodes in containers."
)


def making_of(
    backend: str, privilege: str, subnet: str | None = None, monitoring: bool = False
) -> "Making":
    """How a lab is made, by these options. Raises ClusterError for what cannot be meant."""
    from cluster.addresses import parse_subnet
    from cluster.backends import require_backend, require_privilege
    from cluster.nodes import Making

    require_backend(backend)
    require_privilege(privilege)
    network = None if subnet is None else parse_subnet(subnet)
    return Making(backend, privilege, network, RUNS.absolute(), monitoring)
