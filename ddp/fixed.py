"""What an algorithm costs beside its bytes, as it was timed here; and prices by that.

A stage's fixed time depends on who runs it: how many messages a node's ranks handle on the cores
they share, whether peers change between the inside of a node and the network. So each algorithm is
timed itself (ddp.calibrate), in two sizes that links hardly slow down. Owns how a price follows.
"""

import math
from dataclasses import dataclass, replace

from ddp.cost import Price, price
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.schedule import Schedule

SMALL_NUMEL = 16  # float32: small enough to cost no bandwidth
SOME_NUMEL = 12_289  # about 48 KiB, prime, no bucket's size
ITEM_BYTES = 4


@dataclass(frozen=True)
class FixedCost:
    """What one algorithm takes for a few bytes, the same on every rank."""

    num_stages: int
    """Stages of its schedule; of the backend's own: those of a ring."""
    small_s: float
    """An all-reduce of SMALL_NUMEL, one of several in a row."""
    some_s: float
    """The same of SOME_NUMEL: ranks that outnumber cores take turns at copying and adding."""
    start_s: float
    """What the first of a row takes longer, since ranks do not begin at the same moment."""


def price_of(
    cost: FixedCost | None,
    schedule: Schedule,
    fabric: Fabric,
    num_bytes: int,
    segments: int = 1,
    burst_share: float = 1.0,
) -> Price:
    """As `ddp.cost.price`, with stages that have this fixed cost; None: that of their links."""
    if cost is None or cost.num_stages == 0:
        return price(schedule, fabric, num_bytes, segments, burst_share)
    share = min(1.0, num_bytes / segments / (SOME_NUMEL * ITEM_BYTES))
    more_s = max(0.0, cost.some_s - _bytes_s(schedule, fabric) - cost.small_s)
    stage_s = (cost.small_s + share * more_s) / cost.num_stages
    return price(schedule, _with_stages(fabric, stage_s), num_bytes, segments, burst_share)


def _bytes_s(schedule: Schedule, fabric: Fabric) -> float:
    """How much of `some_s` its bytes took: none where a burst let them through."""

    def free(link: Link) -> Link:
        return Link(0.0, math.inf if link.burst_bytes else link.bytes_per_s)

    links = tuple(
        NodeLinks(free(node.nic_out), free(node.nic_in), free(node.intra)) for node in fabric.links
    )
    return price(schedule, Fabric(fabric.node_of, links), SOME_NUMEL * ITEM_BYTES).seconds


def _with_stages(fabric: Fabric, alpha_s: float) -> Fabric:
    """The same links, all with this fixed cost."""

    def costing(link: Link) -> Link:
        return replace(link, alpha_s=alpha_s)

    links = (
        NodeLinks(costing(node.nic_out), costing(node.nic_in), costing(node.intra))
        for node in fabric.links
    )
    return Fabric(fabric.node_of, tuple(links))
