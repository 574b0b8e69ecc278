"""What an algorithm is: its name, a sentence, what is proven of it, how its schedule is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
