"""The registry of all-reduce algorithms: name, one sentence, what is proven of it, its schedule.

A new algorithm is one file beside this one and one entry in ALGORITHMS. Nothing here sends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from ddp.algorithms.hierarchical import build_hierarchical, hierarchical_schedule
from ddp.algorithms.parameter_server import (
    build_parameter_server,
    parameter_server_schedule,
)
from ddp.algorithms.ring import RING_ORDERS, build_ring, ring_for, ring_schedule
from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.schedule import Schedule

__all__ = [
    "ALGORITHMS",
    "RING_ORDERS",
    "Algorithm",
    "find_algorithm",
    "hierarchical_schedule",
    "parameter_server_schedule",
    "ring_for",
    "ring_schedule",
]


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


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "ring",
            "One ring through all ranks: add up once round, then share once round.",
            "bytes",
            build_ring,
            max_segments=4,
        ),
        Algorithm(
            "hierarchical",
            "Add up inside each node, then between nodes, then share inside.",
            "bytes",
            build_hierarchical,
            max_segments=8,
        ),
        Algorithm(
            "parameter_server",
            "Every rank sends to rank 0, which adds up and sends back: a star.",
            "bytes",
            build_parameter_server,
            max_segments=4,
        ),
        Algorithm(
            "native",
            "The communication library's own all-reduce.",
            "exact_integers",
            None,
            max_segments=1,
        ),
        Algorithm(
            "noop",
            "Nothing is sent: the speed to aim at, not a way to train; ranks drift apart.",
            "none",
            None,
            max_segments=1,
        ),
    )
}


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises UsageError with the known names and the nearest."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = get_close_matches(name, ALGORITHMS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"unknown algorithm {name!r}: choose one of {', '.join(ALGORITHMS)}{hint}")
