"""The highest rate that this machine carries honestly: found by limiting real nodes and probing.

A rate is carried when every link of every node, all at once and both ways, is within the probe's
tolerance of what it should carry. Without a limit a machine shows more than it can carry with one,
so that only trying tells. Reshapes the nodes it is given: they are of no use afterwards.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.netns import NETNS
from cluster.nodes import Making, Place, Shapeable
from cluster.probe import FAR, TOLERANCE, LinkMeasurement, ProbeReport, measure_round
from cluster.probe_plan import Mode, rounds
from cluster.probe_run import ProbeEnds
from cluster.spec import ClusterSpec, catalog_names
from cluster.state import state_root
from cluster.units import MIN_RATE_BITS_PER_S, format_rate

DEFAULT_CLUSTER = "2x2"
STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""The rates that are tried, times powers of ten: finer would say more than a second can show."""
LEAST = 1 / 20
"""Of what flows without a limit: so far down is searched."""
ATTEMPTS = 2


def carried_rate(nodes: Shapeable, spec: ClusterSpec) -> int | None:
    """Bits per second that each link carries while all are full; None where not even a small one.

    Of `spec`, which has more than one node, only their number and the size of packets matter.
    Raises NodeError.
    """
    with ProbeEnds(nodes) as ends:
        free = _least_carried(ends, nodes, limited(spec, None))
        candidates = ladder(free * LEAST, free)
        return highest(candidates, lambda rate: _is_carried(ends, nodes, limited(spec, rate)))


def carried_here(spec: ClusterSpec, privilege: str = "none") -> int | None:
    """As `carried_rate`, in a lab that is made for it and gone when this process is.

    It is made of namespaces, which are there in a moment; containers have links of the same kind.
    """
    root = state_root(os.environ, os.geteuid())
    # with a dot no lab can be called so, and none is taken for one
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=root) as directory:
        path = Path(directory)
        nodes = NETNS.create(Place(path.name, path, Making(NETNS.name, privilege)))
        nodes.up(limited(spec, None))
    try:
        return carried_rate(nodes, spec)
    finally:
        nodes.down()


def is_too_slow(report: ProbeReport) -> bool:
    """Whether a link between nodes carried less than it should."""
    return bool(_too_slow(report))


def _too_slow(report: ProbeReport) -> list[LinkMeasurement]:
    return [
        it
        for it in report.links
        if not it.ok and (it.ratio or 0) < 1 and it.mode != Mode.INTRA_NODE
    ]


def rate_advice(
    report: ProbeReport, nodes: Shapeable, spec: ClusterSpec, lab_name: str
) -> str | None:
    """What to ask for instead, where links were too slow; None where nothing more can be said."""
    try:
        carried = carried_rate(nodes, spec)
    except ClusterError:
        return None
    if carried is None:
        return "this machine carries no rate for sure now: end what else keeps it busy"
    words = f"this machine carries up to about {format_rate(carried)}"
    if carried >= max(it.configured_bits_per_second or 0 for it in _too_slow(report)):
        return f"{words} a moment later: try again"
    if (spec.links.inter_node.rate_bits_per_s or 0) <= carried:
        return f"{words}: lower the rate under overrides in the cluster's file"
    cluster = spec.name if spec.name in catalog_names() else "..."
    options = f" CLUSTER={cluster}" if cluster != DEFAULT_CLUSTER else ""
    options += f" LAB={lab_name}" if lab_name != "default" else ""
    return f"{words}: make cluster-up{options} RATE={format_rate(carried)}"


def limited(spec: ClusterSpec, rate_bits_per_s: int | None) -> ClusterSpec:
    """The same nodes with this rate on every link, and nothing else that slows them down."""
    mtus = {name: spec.links_of(name).inter_node.mtu for name in spec.node_names}
    return ClusterSpec.from_dict(
        {
            "name": spec.name,
            "nodes": spec.nodes,
            "ranks_per_node": spec.ranks_per_node,
            "links": {"inter_node": {"rate": format_rate(rate_bits_per_s)}},
            "overrides": {name: {"inter_node": {"mtu": mtu}} for name, mtu in mtus.items()},
        }
    )


def ladder(low_bits_per_s: float, high_bits_per_s: float) -> list[int]:
    """Round rates between two, ascending."""
    rates = [round(step * 10**power) for power in range(6, 13) for step in STEPS]
    low = max(low_bits_per_s, MIN_RATE_BITS_PER_S)
    return [rate for rate in rates if low <= rate <= high_bits_per_s]


def highest(candidates: Sequence[int], carries: Callable[[int], bool]) -> int | None:
    """The last one that is carried, by halving: what is above one that is not, is not either."""
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if carries(candidates[middle]):
            low = middle + 1
        else:
            high = middle
    return candidates[low - 1] if low else None


def _least_carried(ends: ProbeEnds, nodes: Shapeable, spec: ClusterSpec) -> float:
    return min(link.measured_bytes_per_second for link in _both_ways(ends, nodes, spec)) * 8


def _is_carried(ends: ProbeEnds, nodes: Shapeable, spec: ClusterSpec) -> bool:
    for _ in range(ATTEMPTS):
        off = max(link.off_by for link in _both_ways(ends, nodes, spec))
        if off <= TOLERANCE or off > FAR:
            return off <= TOLERANCE
    return False


def _both_ways(ends: ProbeEnds, nodes: Shapeable, spec: ClusterSpec) -> list[LinkMeasurement]:
    """All links as they are when both directions of all are full; what one way takes is less."""
    for node in nodes.list():
        nodes.shape(node, spec.links_of(node.name))
    plan = rounds(spec, nodes.list(), intra=False)
    full = [flows for flows in plan if flows[0].mode is Mode.BOTH_WAYS]
    return [link for flows in full for link in measure_round(ends, flows, {}).values()]
