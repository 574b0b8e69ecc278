"""A delay put in on purpose, in exactly one place of every step: a straggler, or the proof that a
clock is true. It is put in from outside; the code that measures does not know of it.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ddp.executor import Collective
from ddp.parallel import DistributedDataParallel
from ddp.timing import Traffic
from jobs.data import BatchSource, Position
from jobs.errors import JobSpecError
from jobs.pace import on_gradient
from jobs.spec import InjectSpec
from jobs.wrapper import Wrapper


def check_place(spec: InjectSpec | None, world_size: int, num_buckets: int | None) -> None:
    """Raises JobSpecError where no rank or no bucket would be slowed down.

    `num_buckets` is None where they are not ours, and then no job names one.
    """
    if spec is None:
        return
    if spec.rank is not None and spec.rank >= world_size:
        raise JobSpecError(
            f"inject.rank {spec.rank} with {world_size} ranks",
            rule=f"is a rank from 0 to {world_size - 1}, or null for every one",
        )
    if num_buckets is not None and spec.bucket >= num_buckets:
        raise JobSpecError(
            f"inject.bucket {spec.bucket} of a model with {num_buckets} buckets",
            rule=f"is a bucket from 0 to {num_buckets - 1}",
            fix="name another bucket, or make more of them with a smaller ddp.bucket_cap_mb",
        )


class Delay:
    """What one rank does about `inject`: nothing, where it is null or means another rank."""

    def __init__(self, spec: InjectSpec | None, rank: int) -> None:
        meant = spec is not None and spec.rank in (None, rank)
        self._spec = spec if meant else None

    def into_batches(self, batches: BatchSource) -> BatchSource:
        return SlowBatches(batches, self._seconds) if self._in("data") else batches

    def into_model(self, model: nn.Module) -> None:
        """Slows down the model's forward, or its backward from the first gradient on."""
        if self._in("forward"):
            model.register_forward_pre_hook(lambda *_: time.sleep(self._seconds))
        if self._in("backward"):
            model.register_forward_hook(self._delay_gradient)

    def into_optimizer(self, optimizer: Optimizer) -> None:
        if self._in("optimizer"):
            optimizer.register_step_pre_hook(lambda *_: time.sleep(self._seconds))

    def into_buckets(self, ddp: Wrapper) -> AbstractContextManager[None]:
        """Inside, one bucket takes longer to reduce."""
        if not self._in("bucket"):
            return nullcontext()
        assert isinstance(ddp, DistributedDataParallel)  # a job says so of no other wrapper
        return ddp.reduce_with(self.into_collective(ddp.collective))

    def into_collective(self, collective: Collective) -> Collective:
        if self._spec is None or self._spec.phase != "bucket":
            return collective
        return SlowCollective(collective, self._spec.bucket, self._seconds)

    def _in(self, phase: str) -> bool:
        return self._spec is not None and self._spec.phase == phase

    @property
    def _seconds(self) -> float:
        return self._spec.ms / 1e3 if self._spec else 0.0

    def _delay_gradient(self, _model: nn.Module, _inputs: Any, output: Any) -> None:
        on_gradient(output, lambda: time.sleep(self._seconds))


class SlowBatches:
    """Batches that take longer to fetch."""

    def __init__(self, batches: BatchSource, delay_s: float) -> None:
        self._batches = batches
        self._delay_s = delay_s

    @property
    def position(self) -> Position:
        return self._batches.position

    @position.setter
    def position(self, position: Position) -> None:
        self._batches.position = position

    @property
    def orders(self) -> Sequence[str]:
        return self._batches.orders

    def next(self) -> tuple[Tensor, Tensor]:
        time.sleep(self._delay_s)
        return self._batches.next()


class SlowCollective:
    """An all-reduce that takes longer for one bucket."""

    def __init__(self, collective: Collective, bucket: int, delay_s: float) -> None:
        self.name = collective.name
        self._collective = collective
        self._bucket = bucket
        self._delay_s = delay_s

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        if bucket == self._bucket:
            time.sleep(self._delay_s)
        return self._collective.all_reduce(buffer, segments, bucket)
