"""What an algorithm costs beside its bytes, as it was timed here; and prices by that.

A stage's fixed time depends on who runs it: how many messages a node's ranks handle on the cores
they share, whether peers change between the inside of a node and the network. So each algorithm is
timed itself (ddp.calibrate), in two sizes that links hardly slow down; on one node also in a large
one, since what a byte costs there is each algorithm's own matter. Owns how a price follows.
"""

from dataclasses import dataclass, replace

from ddp.cost import Price, price
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.schedule import Schedule

SMALL_NUMEL = 16  # float32: small enough to cost no bandwidth
SOME_NUMEL = 16_381  # just below 64 KiB, prime, no bucket's size
LARGE_NUMEL = 4_000_037  # 16 MB on each rank: more than caches hold
SMALL_BYTES, SOME_BYTES, LARGE_BYTES = 4 * SMALL_NUMEL, 4 * SOME_NUMEL, 4 * LARGE_NUMEL
IN_A_ROW = 10
"""All-reduces of an algorithm that follow one another where it is timed."""
PAUSE_S = 0.004
"""Before a turn between nodes: an idle link, as while a model computes, lets some bytes through at
once, and the turn before has taken them."""
HALVINGS = 12
"""Of the time in which a stage's cost is looked for: to a few thousandths."""


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
    large_s: float | None = None
    """An all-reduce of LARGE_NUMEL alone; None between nodes, where links decide."""


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
    beyond it, computing hides behind what links carry. On one node what was timed is the price.
    """
    if cost is None or cost.num_stages == 0:
        return price(schedule, fabric, num_bytes, segments, burst_share)
    small_s = cost.small_s / cost.num_stages
    more_s = _some_stage_s(cost, schedule, fabric) - small_s
    stage_s = small_s + more_s * min(1.0, num_bytes / segments / SOME_BYTES)
    found = price(schedule, _with_stages(fabric, stage_s), num_bytes, segments, burst_share)
    return found if cost.large_s is None else replace(found, seconds=_timed_s(cost, num_bytes))


def _some_stage_s(cost: FixedCost, schedule: Schedule, fabric: Fabric) -> float:
    """What a stage must cost so that the price of SOME_BYTES is what was timed; no less than of a
    few bytes. Searched for, since an idle link recovers while a stage costs more."""
    low_s, high_s = cost.small_s / cost.num_stages, cost.some_s / cost.num_stages
    for _ in range(HALVINGS):
        stage_s = (low_s + high_s) / 2
        found = price(schedule, _with_stages(fabric, stage_s), SOME_BYTES, 1, 1 / IN_A_ROW)
        if found.seconds < cost.some_s:
            low_s = stage_s
        else:
            high_s = stage_s
    return low_s


def _timed_s(cost: FixedCost, num_bytes: int) -> float:
    """Between the sizes that were timed, in proportion; beyond the largest as steeply as to it."""
    assert cost.large_s is not None
    timed = [(SMALL_BYTES, cost.small_s), (SOME_BYTES, cost.some_s), (LARGE_BYTES, cost.large_s)]
    (low, low_s), (high, high_s) = timed[:2] if num_bytes <= SOME_BYTES else timed[1:]
    return max(cost.small_s, low_s + (high_s - low_s) * (num_bytes - low) / (high - low))


def _with_stages(fabric: Fabric, alpha_s: float) -> Fabric:
    """The same links, all with this fixed cost."""

    def costing(link: Link) -> Link:
        return replace(link, alpha_s=alpha_s)

    links = (
        NodeLinks(costing(node.nic_out), costing(node.nic_in), costing(node.intra))
        for node in fabric.links
    )
    return Fabric(fabric.node_of, tuple(links))
