"""Every way to reduce: each algorithm, in each ring order that it takes; also of one's own."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp import ALGORITHMS, DdpError, Fabric, UsageError
from ddp.algorithms import RING_ORDERS, Algorithm, find_algorithm
from ddp.schedule import Schedule
from jobs.owncode import short

RING_SEED = 5
"""For the order that needs one."""
TRIED_ON = Fabric((0, 0, 1, 1))


@dataclass(frozen=True)
class Variant:
    """`name` is the algorithm's, with the ring order where there are several."""

    name: str
    algorithm: Algorithm
    ring_order: str

    @property
    def ring_seed(self) -> int:
        return RING_SEED if self.ring_order == "shuffled" else 0

    @property
    def title(self) -> str:
        """The name, with the ring order where it is not the usual one; as in CLOSED_FORMS."""
        usual = self.ring_order == RING_ORDERS[0]
        return self.algorithm.name + ("" if usual else f", {self.ring_order}")

    def schedule(self, fabric: Fabric) -> Schedule | None:
        """None where it has none; raises UsageError where it refuses the fabric."""
        build = self.algorithm.build
        return build and build(fabric, self.ring_order, self.ring_seed)


def variants(own: str | None = None) -> Iterator[Variant]:
    """In the order of the registry; the one of the user's own, by import path, at the end."""
    mine = [] if own is None else [find_algorithm(own)]
    for algorithm in (*ALGORITHMS.values(), *mine):
        each = [Variant(algorithm.name, algorithm, order) for order in RING_ORDERS]
        taken = each[:1] if algorithm.build is None else [one for one in each if _is_taken(one)]
        name = short(algorithm.name)
        for variant in taken or each[:1]:
            title = f"{name}, {variant.ring_order}" if len(taken) > 1 else name
            yield Variant(title, algorithm, variant.ring_order)


def _is_taken(variant: Variant) -> bool:
    try:
        variant.schedule(TRIED_ON)
    except UsageError:
        return False
    except DdpError:  # that is for the grid to tell
        return True
    return True
