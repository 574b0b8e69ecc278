"""What the wrapper's checks that are always on cost: the time inside them, step by step.

Owns the list of those checks. They are timed where they are called, on whichever thread, so that
nothing is left out because it happens to be hidden behind a transfer. None of them waits, so the
thread's own time is taken: what other programs take meanwhile does not count.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist

import ddp.agreement
import ddp.parallel
from ddp import Fabric
from ddp.bucket import Bucket
from ddp.guard import StepGuard
from ddp.reducer import Reducer
from tools.bench_ddp.variants import Variant, set_up

CHECKS: tuple[tuple[Any, str], ...] = (
    (Bucket, "write_status"),  # with the fingerprint of the parameters
    (Bucket, "read_status"),
    (ddp.agreement, "changed_since"),
    (ddp.parallel, "find_tensors"),
    (Reducer, "check_ready"),
    (Reducer, "on_forward"),
    (Reducer, "_on_output_gradient"),
    (Reducer, "_problem"),
    (StepGuard, "_before_step"),
)
"""Wrappers made inside `timed` go through these."""

VARIANT = Variant("50 ms", "native", 10, 160_000, 0.5, forward_ms=16.0, backward_ms=33.0)
"""Its 1.6 MB cross a link of 400mbit in about the time of its backward."""
WARMUP_STEPS, STEPS = 5, 60


def checks_s(fabric: Fabric) -> list[float]:
    """Seconds in CHECKS in each step of one rank a node; none on ranks that take no part.

    One a node, so that ranks do not share a core and what is timed is not another rank's.
    """
    firsts = [fabric.node_of.index(node) for node in sorted(set(fabric.node_of))]
    group = dist.new_group(firsts)
    spent: list[float] = []
    if dist.get_rank() in firsts:
        places = Fabric(tuple(fabric.node_of[rank] for rank in firsts))
        with timed() as take, set_up(VARIANT, places, group) as trained:
            for number in range(-WARMUP_STEPS, STEPS):
                dist.barrier(group)
                take()
                trained.step()
                if number >= 0:
                    spent.append(take())
    dist.barrier()
    return spent


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Inside, calling what is yielded gives the seconds spent in CHECKS since the last call."""
    spent_ns: list[int] = []
    before = [(owner, name, getattr(owner, name)) for owner, name in CHECKS]

    def take() -> float:
        total_ns = sum(spent_ns)
        spent_ns.clear()
        return total_ns / 1e9

    for owner, name, check in before:
        setattr(owner, name, _timing(check, spent_ns))
    try:
        yield take
    finally:
        for owner, name, check in before:
            setattr(owner, name, check)


def _timing(check: Callable[..., Any], spent_ns: list[int]) -> Callable[..., Any]:
    @wraps(check)
    def call(*arguments: Any, **more: Any) -> Any:
        start_ns = time.thread_time_ns()
        try:
            return check(*arguments, **more)
        finally:
            spent_ns.append(time.thread_time_ns() - start_ns)

    return call
