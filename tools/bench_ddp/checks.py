"""What the wrapper's checks that are always on cost: the same steps with and without them, in turn.

Owns the list of those checks, and how they are left out: by standing in for them, since no option
switches them off.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ddp.agreement
from ddp import DistributedDataParallel, Fabric
from ddp.bucket import Bucket, Status
from ddp.fingerprint import Fingerprints
from ddp.guard import StepGuard
from ddp.reducer import Reducer
from tools.bench_ddp.variants import FIRST_BUCKET_MB, TIMEOUT_S, Variant, set_up

CHECKS: tuple[tuple[Any, str, Any], ...] = (
    (Bucket, "write_status", None),
    (Bucket, "read_status", Status(0, parameters_differ=False)),
    (Fingerprints, "read", None),
    (ddp.agreement, "changed_since", None),
    (Reducer, "check_ready", None),
    (Reducer, "_problem", None),
    (StepGuard, "_before_step", None),
)
"""Where each is, and what stands for its answer where it is left out. Wrappers made inside
`switchable` go through these."""

STEP_S = 0.05
VARIANT = Variant("50 ms", "native", 10, 160_000, 0.5, forward_ms=16.0, backward_ms=33.0)
"""Its 1.6 MB cross a link of 400mbit in about the time of its backward."""
WIDTH, FIRST_BATCH = 200, 512
WARMUP_STEPS, ROUNDS = 5, 150

StepPairs = list[tuple[float, float]]
"""By round: seconds with checks, and without."""


def checks_cost(fabric: Fabric) -> dict[str, StepPairs]:
    """Steps of 50 ms on one rank a node; none on ranks that take no part.

    One a node, so that ranks do not share a core. `paced`: computing sleeps, and what is done
    meanwhile costs nothing. `busy`: it does not, so that all that checks take is in the step.
    """
    firsts = [fabric.node_of.index(node) for node in sorted(set(fabric.node_of))]
    group = dist.new_group(firsts)
    found: dict[str, StepPairs] = {"paced": [], "busy": []}
    if dist.get_rank() in firsts:
        places = Fabric(tuple(fabric.node_of[rank] for rank in firsts))
        with switchable() as leave_out:
            with set_up(VARIANT, places, group) as trained:
                found["paced"] = in_turn(trained.step, leave_out, group)
            with busy(places, group) as step:
                found["busy"] = in_turn(step, leave_out, group)
    dist.barrier()
    return found


def in_turn(
    step: Callable[[], object],
    leave_out: Callable[[], AbstractContextManager[None]],
    group: Any,
) -> StepPairs:
    """Each round a step with the checks and one without, in changing order."""

    def timed_s() -> float:
        dist.barrier(group)
        start_s = time.perf_counter()
        step()
        return time.perf_counter() - start_s

    def without_s() -> float:
        with leave_out():
            return timed_s()

    pairs: StepPairs = []
    for number in range(-WARMUP_STEPS, ROUNDS):
        if number % 2:
            with_s, out_s = timed_s(), without_s()
        else:
            out_s, with_s = without_s(), timed_s()
        if number >= 0:
            pairs.append((with_s, out_s))
    return pairs


@contextmanager
def busy(fabric: Fabric, group: Any) -> Iterator[Callable[[], object]]:
    """Training that computes for about 50 ms a step, with gradients of the same sizes."""
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(VARIANT.layers)))
    wrapped = DistributedDataParallel(
        model,
        algorithm=VARIANT.algorithm or "",
        bucket_cap_mb=VARIANT.bucket_mb,
        first_bucket_mb=VARIANT.bucket_mb or FIRST_BUCKET_MB,
        process_group=group,
        fabric=fabric,
        timeout_s=TIMEOUT_S,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    def train(inputs: torch.Tensor) -> float:
        start_s = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        wrapped(inputs).square().mean().backward()
        optimizer.step()
        wrapped.communication()
        return time.perf_counter() - start_s

    try:
        inputs = torch.randn(FIRST_BATCH, WIDTH)
        took_s = torch.tensor(min(train(inputs) for _ in range(WARMUP_STEPS)))
        dist.all_reduce(took_s, dist.ReduceOp.MAX, group)  # a batch that suits all
        rows = max(1, round(FIRST_BATCH * STEP_S / took_s.item()))
        inputs = torch.randn(rows, WIDTH)
        yield lambda: train(inputs)
    finally:
        wrapped.close()


@contextmanager
def switchable() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Inside what is yielded, checks are left out; every rank must do the same."""
    left_out = [False]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in CHECKS]

    @contextmanager
    def leave_out() -> Iterator[None]:
        left_out[0] = True
        try:
            yield
        finally:
            left_out[0] = False

    for owner, name, answer in CHECKS:
        setattr(owner, name, _unless(left_out, getattr(owner, name), answer))
    try:
        yield leave_out
    finally:
        for owner, name, check in before:
            setattr(owner, name, check)


def _unless(left_out: list[bool], check: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    @wraps(check)
    def call(*arguments: Any, **more: Any) -> Any:
        return answer if left_out[0] else check(*arguments, **more)

    return call
