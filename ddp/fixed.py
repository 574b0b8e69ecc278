"""What an algorithm costs beside its bytes, as it was timed here; and prices by that.

A stage's fixed time depends on who runs it: how many messages a node's ranks handle on the cores
they share, whether peers change between the inside of a node and the network. So each algorithm is
timed itself (ddp.calibrate), in two sizes that links hardly slow down. Owns how a price follows.
"""

from dataclasses import dataclass, replace

from ddp.cost import Price, price
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.schedule import Schedule

SMALL_NUMEL = 16  # float32: small enough to cost no bandwidth
SOME_NUMEL = 20_011  # about 80 KiB, prime, no bucket's size
SOME_BYTES = 4 * SOME_NUMEL
IN_A_ROW = 4
"""All-reduces of an algorithm that follow one another where it is timed."""


def in_a_row(num_bytes: int) -> int:
    """So many all-reduces of a small buffer follow one another where algorithms are compared, and
    the mean of them counts, since ranks do not begin at the same moment."""
    return 10 if num_bytes <= 64 * 2**10 else 4 if num_bytes <= 512 * 2**10 else 1


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
    """What the first of a row takes longer, since ranks do not begin at the same moment: the same
    for all that were timed together."""


def price_of(
    cost: FixedCost | None,
    schedule: Schedule,
    fabric: Fabric,
    num_bytes: int,
    segments: int = 1,
    burst_share: float = 1.0,
) -> Price:
    """As `ddp.cost.price`, with stages that have this fixed cost; None: that of their links.

    What the price lacks of the larger size's time, more bytes cost in proportion, up to that size:
    beyond it, computing hides behind what links carry.
    """
    if cost is None or cost.num_stages == 0:
        return price(schedule, fabric, num_bytes, segments, burst_share)
    stage_s = cost.small_s / cost.num_stages
    least = price(schedule, _with_stages(fabric, stage_s), SOME_BYTES, 1, 1 / IN_A_ROW)
    lacking_s = max(0.0, cost.some_s - least.seconds) / cost.num_stages
    stage_s += lacking_s * min(1.0, num_bytes / segments / SOME_BYTES)
    return price(schedule, _with_stages(fabric, stage_s), num_bytes, segments, burst_share)


def _with_stages(fabric: Fabric, alpha_s: float) -> Fabric:
    """The same links, all with this fixed cost."""

    def costing(link: Link) -> Link:
        return replace(link, alpha_s=alpha_s)

    links = (
        NodeLinks(costing(node.nic_out), costing(node.nic_in), costing(node.intra))
        for node in fabric.links
    )
    return Fabric(fabric.node_of, tuple(links))
