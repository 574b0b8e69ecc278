"""The highest rate of links that this machine carries, as a check: measured, not guessed."""

import os

from cluster.carried import carried_here
from cluster.doctor.checks import FAULT, OK, SKIPPED, Check
from cluster.errors import ClusterError
from cluster.lab import list_labs, user_of
from cluster.spec import ClusterSpec
from cluster.units import format_rate

HELP = "see docs/troubleshooting.md#the-rate-is-too-high"


def rate_check(spec: ClusterSpec, privilege: str = "none") -> Check:
    """Makes a lab of as many nodes for it, which takes about ten seconds and then is gone."""
    if spec.nodes < 2:
        return Check("rate", SKIPPED, "one node has no link to another")
    for name in list_labs():
        if user := user_of(name):
            seen = f'not measured: it would disturb lab "{name}": {user}'
            return Check("rate", SKIPPED, seen, ("make doctor     again when that has ended",))
    try:
        carried = carried_here(spec, privilege)
    except ClusterError as exc:
        seen = "; ".join(part for part in (exc.message, exc.seen) if part)
        return Check("rate", FAULT, f"a lab for measuring it did not come up: {seen}", exc.fix)
    return judged(spec, carried, os.getloadavg()[0], len(os.sched_getaffinity(0)))


def judged(spec: ClusterSpec, carried: int | None, load: float, num_cores: int) -> Check:
    """What is carried against what is asked for; `load` is how many programs ran meanwhile."""
    busy = f" (measured while this machine was busy: load {load:.1f} on {num_cores} cores)"
    remark = busy if load > num_cores + 1 else ""
    if carried is None:
        seen = f"no rate is carried for sure{remark}"
        return Check("rate", FAULT, seen, ("end what else keeps this machine busy; make doctor",))
    seen = f"links of {spec.nodes} nodes carry up to about {format_rate(carried)} each, both ways"
    asked = max(rates(spec), default=0)
    if asked > carried:
        fixes = (f"RATE={format_rate(carried)}", "end what else keeps this machine busy", HELP)
        return Check("rate", FAULT, f"{seen}; asked: {format_rate(asked)}{remark}", fixes)
    return Check("rate", OK, f"{seen}{remark}")


def rates(spec: ClusterSpec) -> list[int]:
    """The limits that links between nodes are to have."""
    found = [spec.links_of(name).inter_node.rate_bits_per_s for name in spec.node_names]
    return [rate for rate in found if rate is not None]
