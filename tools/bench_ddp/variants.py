"""Variant: one way to train the paced model; set up, it trains a step at a time and says how long
each part of it took.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as StockDDP

from ddp import DistributedDataParallel, Fabric
from jobs.models.paced import PacedModel
from jobs.pace import Pace

MIB = 2**20
TIMEOUT_S = 60.0
BATCH = (1, 64)
FIRST_BUCKET_MB = 1.0  # torch's, and ours by default


@dataclass(frozen=True)
class Variant:
    """One way to train. `algorithm` None: stock DDP. Times are floors, slept layer by layer.

    `bucket_mb` of all buckets, the first too; None: as the wrapper has it by default.
    """

    name: str
    algorithm: str | None
    layers: int
    layer_bytes: int
    bucket_mb: float | None
    forward_ms: float
    backward_ms: float
    more: dict[str, Any] = field(default_factory=dict)
    """Further arguments of our wrapper."""


@dataclass(frozen=True)
class StepTimes:
    """One step on one rank. The last four are known of our wrapper alone.

    `backward_s`: until the last gradient. `first_ready_s`: from the start of backward until the
    first bucket could go. `buckets_s`: how long each took, in order.
    """

    step_s: float
    call_s: float
    backward_s: float = 0.0
    first_ready_s: float = 0.0
    buckets_s: tuple[float, ...] = ()


class Trained:
    """A variant that is set up: `step` trains one step of it."""

    def __init__(self, variant: Variant, fabric: Fabric, group: dist.ProcessGroup | None) -> None:
        torch.manual_seed(1)
        self.model = PacedModel(variant.layers, variant.layer_bytes)
        self.wrapped = wrap(self.model, variant, fabric, group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, foreach=False)
        self.inputs = torch.full(BATCH, 10.0 + dist.get_rank(group))

    def step(self) -> StepTimes:
        start_ns = time.monotonic_ns()
        self.optimizer.zero_grad(set_to_none=True)
        distance: Tensor = self.wrapped(self.inputs)
        loss = distance.square() / 2
        backward_ns = time.monotonic_ns()
        loss.backward()  # type: ignore[no-untyped-call]
        returned_ns = time.monotonic_ns()
        self.optimizer.step()
        end_ns = time.monotonic_ns()
        step_s, call_s = (end_ns - start_ns) / 1e9, (returned_ns - backward_ns) / 1e9
        if not isinstance(self.wrapped, DistributedDataParallel):
            return StepTimes(step_s, call_s)
        seen = self.wrapped.communication()
        assert seen.gradients_ready_ns is not None
        return StepTimes(
            step_s,
            call_s,
            (seen.gradients_ready_ns - backward_ns) / 1e9,
            (min(bucket.ready_ns for bucket in seen.buckets) - backward_ns) / 1e9,
            tuple((bucket.end_ns - bucket.start_ns) / 1e9 for bucket in seen.buckets),
        )

    def bucket_bytes(self) -> list[int]:
        """Of each bucket, in the order in which they go."""
        if isinstance(self.wrapped, DistributedDataParallel):
            return [4 * sum(bucket.numels) for bucket in self.wrapped.plan.buckets]
        told = self.wrapped._get_ddp_logging_data()  # type: ignore[operator]
        sizes = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
        return [int(size) for size in str(sizes).split(",")]


def wrap(
    model: nn.Module, variant: Variant, fabric: Fabric, group: dist.ProcessGroup | None
) -> nn.Module:
    """With equal buckets for stock DDP and ours, where a size is given: the first too."""
    if variant.algorithm is None:
        return StockDDP(
            model,
            process_group=group,
            bucket_cap_mb=variant.bucket_mb,
            gradient_as_bucket_view=True,
        )
    return DistributedDataParallel(
        model,
        algorithm=variant.algorithm,
        bucket_cap_mb=variant.bucket_mb,
        first_bucket_mb=variant.bucket_mb or FIRST_BUCKET_MB,
        process_group=group,
        fabric=fabric,
        timeout_s=TIMEOUT_S,
        **variant.more,
    )


@contextmanager
def set_up(
    variant: Variant, fabric: Fabric, group: dist.ProcessGroup | None = None
) -> Iterator[Trained]:
    """Inside, the ranks of `group` (None: all) can train it, and it takes its time."""
    trained = Trained(variant, fabric, group)
    layers = list(trained.model.layers)
    try:
        with Pace(trained.model, layers, variant.forward_ms / 1e3, variant.backward_ms / 1e3):
            yield trained
    finally:
        if isinstance(trained.wrapped, DistributedDataParallel):
            trained.wrapped.close()
