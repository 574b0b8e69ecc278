"""What an algorithm is: its name, a sentence, what is proven of it, how its schedule is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.schedule import Schedule


@dataclass(frozen=True)
class Algorithm:
    """One way to reduce gradients.

    `proof` is what its result is checked against: the bytes of the independent fold, exact sums
    of integers, a tolerance, or nothing (it does not reduce).
    `build(fabric, ring_order, ring_seed)` makes its schedule; None where it has none to show.
    `max_segments` is how many segments in flight still pay for themselves.
    """

    name: str
    summary: str
    proof: Literal["bytes", "exact_integers", "tolerance", "none"]
    build: Callable[[Fabric, str, int], Schedule] | None
    max_segments: int


def require_no_order(name: str, why: str, ring_order: str, ring_seed: int) -> None:
    """Raises UsageError where an algorithm without a choice of ring is given one."""
    if ring_order != "contiguous" or ring_seed:
        raise UsageError(
            f"{name} with ring order {ring_order!r} and seed {ring_seed}: {why}; leave the order "
            "'contiguous' and the seed 0"
        )


def require_pairs(name: str, num_ranks: int) -> None:
    """Raises UsageError where ranks cannot be paired off again and again."""
    if num_ranks & (num_ranks - 1):
        raise UsageError(
            f"{name} on {num_ranks} ranks: it pairs ranks off, which takes a power of two; choose "
            "hierarchical or ring"
        )
