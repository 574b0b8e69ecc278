"""Options: the arguments of the wrapper that must be the same on every rank.

Owns which of them go together. Their meaning is told in the docstring of DistributedDataParallel.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

from ddp.algorithms import find_algorithm
from ddp.errors import UsageError

BUCKET_CAP_MB = 25.0
ON_GPU = ("hierarchical", "native", "noop")
"""The algorithms that a GPU has: they are made of what its own backend does."""


@dataclass(frozen=True)
class Options:
    """The arguments of DistributedDataParallel that must be the same on every rank."""

    algorithm: str
    ring_order: str
    ring_seed: int
    segments: int | Literal["auto"]
    bucket_cap_mb: float
    first_bucket_mb: float
    overlap: bool
    per_parameter: bool
    broadcast_buffers: bool
    gradient_as_bucket_view: bool
    timeout_s: float
    find_unused_parameters: bool = False
    static_graph: bool = False
    explicit_sync: bool = False
    rebuild_buckets: bool = True
    lesson_deadlock: bool = False
    transport: str = "sockets"
    shared_memory: bool = True
    refusal: str | None = None
    """Why an argument cannot be kept, in words; all ranks must say so together."""

    def __post_init__(self) -> None:
        # at once: without it there is no saying how long to wait for the other ranks
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise UsageError(f"timeout_s={self.timeout_s!r}: a number of seconds above 0")

    def check(self, *, registered: bool) -> None:
        """Raises UsageError. `registered`: the algorithm is one of ours, given by name."""
        if self.refusal:
            raise UsageError(self.refusal)
        if registered:
            find_algorithm(self.algorithm)
        if self.segments != "auto" and (type(self.segments) is not int or self.segments < 1):
            raise UsageError(f"segments={self.segments!r}: 'auto', or a whole number from 1 on")
        if self.transport not in TRANSPORTS:
            raise UsageError(f"transport={self.transport!r}: one of {', '.join(TRANSPORTS)}")
        for one, other, why in (
            ("explicit_sync", "overlap", "sync_grads() comes after backward: give overlap=False"),
            ("explicit_sync", "static_graph", "nothing is reduced during backward: leave it out"),
            ("lesson_deadlock", "find_unused_parameters", "which is the cure: choose one of them"),
            ("lesson_deadlock", "static_graph", "which finds unused parameters: choose one"),
        ):
            if getattr(self, one) and getattr(self, other):
                raise UsageError(f"{one}=True with {other}=True: {why}")

    @property
    def allows_unused(self) -> bool:
        """Whether a parameter may get no gradient in a backward."""
        return self.find_unused_parameters or self.static_graph

    @property
    def looks_ahead(self) -> bool:
        """Whether each forward's graph is searched for parameters that will get no gradient."""
        return self.find_unused_parameters and not (self.static_graph or self.explicit_sync)

    @property
    def rebuilds(self) -> bool:
        """Whether the first backward's order makes the buckets; as torch, not where it changes."""
        steady = self.static_graph or not self.find_unused_parameters
        return self.rebuild_buckets and steady and not self.explicit_sync


TRANSPORTS = ("sockets", "torch")
"""What carries chunks between ranks: our own sockets, or torch's messages, which any system has."""
OPTION_NAMES = frozenset(field.name for field in fields(Options))
"""As the arguments of the wrapper are called."""
