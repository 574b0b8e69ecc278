"""Changes the links of a lab that is up, so that what stands is known at every moment.

What is wanted is written down first, then logged, then made and read back, then kept. A change
that fails is taken back; one whose command was killed is taken back by the next command.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cluster.errors import ClusterError, ShapingError
from cluster.kept import DEFAULT_LAB, Lab, write_lab
from cluster.linklog import LinkRate, changes_since, log_begun, log_settled
from cluster.nodes import Node
from cluster.shaping import Side
from cluster.spec import ClusterSpec, LinksSpec
from cluster.state import LabDirectory
from cluster.units import format_rate


def set_links(lab: Lab, directory: LabDirectory, spec: ClusterSpec) -> Lab:
    """The lab with the links of `spec`, not measured; itself where they are so. Needs the lock.

    Raises ShapingError: where a link could not be set, all are again as they were, or the error
    says which are not.
    """
    nodes = _nodes_to_change(lab, spec)
    if not nodes:
        return lab
    rates = _changed_rates(nodes, lab.spec, spec)
    started = replace(lab, pending=spec)
    write_lab(started, directory)
    log_begun(directory.path, rates)
    try:
        for node in nodes:
            lab.nodes.shape(node, spec.links_of(node.name))
    except BaseException as exc:
        mend(started, directory)
        if not isinstance(exc, ClusterError):
            raise
        raise ShapingError(
            f"the links could not be changed: {exc.message}",
            "a change that fails is taken back: the limits are as they were, read back",
            exc.fix,
            seen=exc.seen,
        ) from exc
    changed = replace(
        lab,
        spec=spec,
        probe=None,
        changed_at=time.time(),
        link_position=log_settled(directory.path, rates),
    )
    write_lab(changed, directory)
    return changed


def mend(lab: Lab, directory: LabDirectory) -> Lab:
    """Takes back a change that did not come to its end; the lab as it was. Needs the lock."""
    if lab.pending is None:
        return lab
    nodes = lab.nodes.list()
    try:
        for node in nodes:
            lab.nodes.shape(node, lab.spec.links_of(node.name))
    except ClusterError as exc:
        raise _half_changed(lab, exc) from exc
    position, log = lab.link_position, changes_since(directory.path, lab.link_position)
    if log and log[-1].settled_ns is None:
        position = log_settled(directory.path, _taken_back(nodes, lab.pending, lab.spec))
    whole = replace(lab, pending=None, link_position=position)
    write_lab(whole, directory)
    return whole


def _nodes_to_change(lab: Lab, spec: ClusterSpec) -> list[Node]:
    """Also those whose limits somebody changed behind our back."""
    return [
        node
        for node in lab.nodes.list()
        if spec.links_of(node.name) != lab.spec.links_of(node.name)
        or lab.nodes.shape_plan(node, spec.links_of(node.name))
    ]


def _taken_back(nodes: Sequence[Node], pending: ClusterSpec, spec: ClusterSpec) -> list[LinkRate]:
    """What is again as it was, of the nodes that were to change; of all where none was."""
    asked = [node for node in nodes if pending.links_of(node.name) != spec.links_of(node.name)]
    return _changed_rates(asked or nodes, pending, spec)


def _changed_rates(
    nodes: Sequence[Node], before: ClusterSpec, after: ClusterSpec
) -> list[LinkRate]:
    """What is new of each node; of one that should not be different, all of it."""
    rates = []
    for node in nodes:
        old, new = _rates(before.links_of(node.name)), _rates(after.links_of(node.name))
        changed = {side: rate for side, rate in new.items() if rate != old[side]} or new
        rates += [LinkRate(node.name, side.value, rate) for side, rate in changed.items()]
    return rates


def _rates(links: LinksSpec) -> Mapping[Side, int | None]:
    nic = links.inter_node.rate_bits_per_s
    return {Side.OUT: nic, Side.IN: nic, Side.INSIDE: links.intra_node.rate_bits_per_s}


def _half_changed(lab: Lab, exc: ClusterError) -> ShapingError:
    """The error for links that can be neither changed nor put back; says what stands now."""
    stands = "; ".join(
        f"{node.name} {side} {format_rate(rate)}"
        for node in lab.nodes.list()
        for side, rate in lab.nodes.limits(node).items()
    )
    option = "" if lab.name == DEFAULT_LAB else f" LAB={lab.name}"
    return ShapingError(
        f'the links of lab "{lab.name}" are half changed: {exc.message}',
        f"they were to be again: {lab.spec.describe()}; the next command tries to",
        f"make cluster-down{option} && make cluster-up{option}",
        seen=f"{exc.seen or exc.message}; read back: {stands}",
    )
