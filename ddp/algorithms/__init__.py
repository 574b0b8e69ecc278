"""The registry of all-reduce algorithms: name, one sentence, what is proven of it, its schedule.

A new algorithm is one file beside this one and one entry in ALGORITHMS; one that is only yours is
found by import path. Nothing here sends.
"""

from difflib import get_close_matches

from ddp.algorithms.algorithm import Algorithm
from ddp.algorithms.halving_doubling import build_halving_doubling, halving_doubling_schedule
from ddp.algorithms.hierarchical import build_hierarchical, hierarchical_schedule
from ddp.algorithms.hierarchical_leader import (
    build_hierarchical_leader,
    hierarchical_leader_schedule,
)
from ddp.algorithms.own import own_algorithm
from ddp.algorithms.parameter_server import (
    build_parameter_server,
    parameter_server_schedule,
)
from ddp.algorithms.recursive_doubling import (
    build_recursive_doubling,
    recursive_doubling_schedule,
)
from ddp.algorithms.ring import RING_ORDERS, build_ring, ring_for, ring_schedule
from ddp.errors import UsageError
from ddp.importpath import is_import_path

__all__ = [
    "ALGORITHMS",
    "AUTO",
    "RING_ORDERS",
    "Algorithm",
    "find_algorithm",
    "halving_doubling_schedule",
    "hierarchical_leader_schedule",
    "hierarchical_schedule",
    "is_known",
    "parameter_server_schedule",
    "pinned",
    "recursive_doubling_schedule",
    "ring_for",
    "ring_schedule",
]

AUTO = "auto"
"""Stands for one of the others, by bucket (ddp.auto)."""

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
            "hierarchical_leader",
            "Add up on one rank of each node, then between those, then share inside.",
            "bytes",
            build_hierarchical_leader,
            max_segments=8,
        ),
        Algorithm(
            "halving_doubling",
            "Exchange halves with a neighbour, quarters two ranks away, ...; then back again.",
            "bytes",
            build_halving_doubling,
            max_segments=4,
        ),
        Algorithm(
            "recursive_doubling",
            "Exchange all with a neighbour, then with a rank two away, ...: few, large messages.",
            "bytes",
            build_recursive_doubling,
            max_segments=8,
        ),
        Algorithm(
            "parameter_server",
            "Every rank sends to rank 0, which adds up and sends back: a star.",
            "bytes",
            build_parameter_server,
            max_segments=8,
        ),
        Algorithm(
            "native",
            "The communication library's own all-reduce.",
            "exact_integers",
            None,
            max_segments=1,
        ),
        Algorithm(
            AUTO,
            "For each bucket what is fastest here, as measured before the run.",
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
    """The algorithm of that name, or at that import path (ddp.algorithms.own says what lies there).

    Raises UsageError: with the known names and the nearest, or with what is wrong with the path.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if is_import_path(name):
        return own_algorithm(name)
    near = get_close_matches(name, ALGORITHMS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(
        f"unknown algorithm {name!r}: choose one of {', '.join(ALGORITHMS)}, or write the place of "
        f"one of your own, path/to/my.py:build{hint}"
    )


def is_known(name: str) -> bool:
    """Whether `find_algorithm` is the one to ask: false of hooks and collectives of a caller."""
    return name in ALGORITHMS or is_import_path(name)


def pinned(name: str) -> str:
    """A name that means the same in every process: where it lies and the hash of what lies there.

    Registered names are as they are, and so are places where nothing can be loaded.
    """
    try:
        return find_algorithm(name).name
    except UsageError:
        return name
