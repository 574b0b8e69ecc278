"""The step loop of one rank: what a step does, warm-up, and steps without network.

Owns the order of things within a step and what a baseline block leaves untouched. Where the time
of a step goes is measured by phases; nothing is written to disk here.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from jobs.data import BatchSource, Position
from jobs.derive import Interval
from jobs.models import next_byte_loss
from jobs.phases import HostTimes, NicCounters, StepClock, Times
from jobs.randomness import RandomState
from jobs.records import StepRecord
from jobs.spec import TrainSpec
from jobs.wrapper import Wrapper


@dataclass(frozen=True)
class MeasuredStep:
    """A step's record, and when backward of its last micro-step ran (the reduced one)."""

    record: StepRecord
    backward: Interval


@dataclass
class Trainer:
    """Trains one rank, one step a call.

    Loss is averaged over the micro-steps of a step; gradients are reduced with the last of them
    (with `reduces_each`, after every one), then clipped, then used. `meet`: a barrier, at which
    ranks wait for one another before they use their gradients. `device`: where batches go; None:
    they stay. `times`: those of the device that computes.
    """

    ddp: Wrapper
    optimizer: Optimizer
    batches: BatchSource
    spec: TrainSpec
    batch_size: int
    nic: NicCounters | None
    loss: Callable[[Any, Tensor], Tensor] = next_byte_loss
    reduces_each: bool = False
    meet: Callable[[], None] | None = None
    device: torch.device | None = None
    times: Times = field(default_factory=HostTimes)

    def step(self, number: int) -> MeasuredStep:
        clock = StepClock(self.times)
        loss = sum(self._micro_step(clock, last) for last in self._micro_steps())
        if self.meet:
            plan = self.ddp.plan
            with clock.meeting(len(plan.buckets) if plan else 0):
                self.meet()
        with clock.phase("optimizer"):
            self._use_gradients()
        clock.stop()
        record = clock.record(
            number,
            self.ddp.communication(),
            samples=self.batch_size * self.spec.accumulate,
            loss=loss if math.isfinite(loss) else None,
            nic_bytes=self.nic.since_last() if self.nic else None,
        )
        return MeasuredStep(record, clock.last("backward"))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, steps send nothing and wait for nobody."""
        meet, self.meet = self.meet, None
        with self.ddp.without_network():
            yield
        self.meet = meet

    def forget_nic_bytes(self) -> None:
        """What was sent between steps, by barriers say, belongs to none."""
        if self.nic:
            self.nic.since_last()

    def leave_out_nic_bytes(self) -> None:
        """What was sent since the last step is another job's, and is not in this one's total."""
        if self.nic:
            self.nic.leave_out()

    def _micro_steps(self) -> Iterator[bool]:
        return (index == self.spec.accumulate - 1 for index in range(self.spec.accumulate))

    def _micro_step(self, clock: StepClock, last: bool) -> float:
        with clock.phase("data"):
            inputs, targets = self.batches.next()
            if self.device is not None:
                inputs, targets = inputs.to(self.device), targets.to(self.device)
        with nullcontext() if last or self.reduces_each else self.ddp.no_sync():
            with clock.phase("forward"):
                loss = self.loss(self.ddp(inputs), targets) / self.spec.accumulate
            with clock.phase("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _use_gradients(self) -> None:
        if self.spec.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.ddp.parameters(), self.spec.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Snapshot:
    """All that training changes on one rank: parameters, buffers, optimizer, randomness, data."""

    tensors: tuple[Tensor, ...]
    optimizer: dict[str, Any]
    random: RandomState
    position: Position

    @classmethod
    def take(cls, trainer: Trainer) -> "Snapshot":
        return cls(
            tuple(tensor.clone() for tensor in _tensors(trainer.ddp.module)),
            copy.deepcopy(trainer.optimizer.state_dict()),
            RandomState.take(),
            trainer.batches.position,
        )

    def restore(self, trainer: Trainer) -> None:
        for tensor, before in zip(_tensors(trainer.ddp.module), self.tensors, strict=True):
            tensor.copy_(before)
        trainer.optimizer.load_state_dict(copy.deepcopy(self.optimizer))
        self.random.restore()
        trainer.batches.position = self.position


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, without their gradients and also those that are never saved."""
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]


def baseline_block(
    trainer: Trainer,
    num_steps: int,
    barrier: Callable[[], None],
    on_step: Callable[[MeasuredStep], None],
) -> list[MeasuredStep]:
    """Steps with nothing sent, all ranks starting together; afterwards all is as it was before."""
    before = Snapshot.take(trainer)
    measured = []
    with trainer.alone():
        for number in range(num_steps):
            barrier()  # outside the clock: ranks must not pay for one another here
            measured.append(trainer.step(number))
            on_step(measured[-1])
    before.restore(trainer)
    trainer.forget_nic_bytes()
    return measured
