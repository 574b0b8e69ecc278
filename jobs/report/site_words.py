"""Where a job runs, in a sentence: a lab and what its links carry, or a cluster of others."""

from collections.abc import Mapping
from typing import Any

from cluster.kept import DEFAULT_LAB, Lab
from cluster.site import Site
from jobs.report.lab_words import lab_words, rates_words, size_words

RAY = "ray"
SHOWN = 4  # so many nodes are named


def site_words(site: Site) -> str:
    """`Lab "default": 2 nodes x 2 ranks, ...`, or the Ray cluster, its NICs, who limits them."""
    if isinstance(site, Lab):
        return f'Lab "{site.name}": {lab_words(site)}'
    nodes = [f"{node.name} {node.address} {node.interface}" for node in site.nodes.list()]
    more = f", and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return (
        f"{_cluster(site)}: {size_words(site.spec)} ({', '.join(nodes[:SHOWN])}{more}). "
        f"{_limits(site)}"
    )


def lab_option(run: Mapping[str, Any]) -> str:
    """What names the lab of a run on the command line; nothing for the usual one."""
    name = run["lab"]["name"]
    return "" if name == DEFAULT_LAB else f" LAB={name}"


def place_options(run: Mapping[str, Any]) -> str:
    """What makes a command run where this run did."""
    lab = run["lab"]
    if lab["backend"] != RAY:
        return lab_option(run)
    if lab["underlay"] is not None:
        return f" BACKEND={RAY}{lab_option(run)}"
    return f" BACKEND={RAY} ADDRESS={lab['name']} RANKS_PER_NODE={run['nproc_per_node']}"


def _cluster(site: Site) -> str:
    if site.underlay is None:
        return f"Ray cluster at {site.name}"
    return f'Ray cluster inside lab "{site.underlay.name}"'


def _limits(site: Site) -> str:
    measured = "links are measured by the ranks before they train"
    if site.underlay is None:
        return f"Nothing is limited here; {measured}"
    return f"The lab limits the links, {rates_words(site.spec)}, not this backend; {measured}"
