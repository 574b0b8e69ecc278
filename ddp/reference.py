"""The oracle: one process that trains on every rank's data in turn, with the ranks' own plan.

Owns what distributed training must equal. Uses replay, never the executor, hooks or buckets of
the real thing.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ddp.algorithms import is_known
from ddp.errors import PlanError, UsageError
from ddp.plan import BucketLayout, ReductionPlan
from ddp.replay import replay
from ddp.schedule import Schedule

Gradients = dict[str, Tensor]


class Reference(nn.Module):
    """Stands for the wrappers of all ranks, in one process: same bytes, same machine type.

    Call it as the wrapper is called, in and out of `no_sync`. Each rank has random generators of
    its own (torch's and Python's, as they were when this was made, unless they are seeded inside
    `as_rank`) and buffers of its own, which a forward that synchronises takes from rank 0 where
    `broadcast_buffers`. Outside `backward` and `as_rank` generators are the caller's, and the
    module's buffers rank 0's. `plan` may be replaced between backwards.

    Raises PlanError for a plan whose algorithm has no schedule.
    """

    def __init__(
        self, module: nn.Module, plan: ReductionPlan, *, broadcast_buffers: bool = True
    ) -> None:
        super().__init__()
        self.module = module
        self.plan = plan
        self._broadcast_buffers = broadcast_buffers
        self._in_no_sync = False
        self._held = [_Held.of(module) for _ in plan.node_of]  # by rank, until its next turn
        self._rank = 0
        self._sent: list[list[Tensor]] = []  # rank 0's buffers, by forward of this backward
        self._num_received = 0

    @property
    def plan(self) -> ReductionPlan:
        """What is replayed."""
        return self._plan

    @plan.setter
    def plan(self, plan: ReductionPlan) -> None:
        schedules = {}
        for name in plan.algorithms:
            schedule = plan.schedule(name) if is_known(name) else None
            if schedule is None:
                raise PlanError(f"{name} has no schedule, so there is nothing to replay")
            schedules[name] = schedule
        self._plan, self._schedules = plan, schedules

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward, as the rank whose turn it is. Raises UsageError."""
        recomputing = torch._C._current_graph_task_id() != -1  # a checkpoint's second forward
        synchronises = torch.is_grad_enabled() and not self._in_no_sync and not recomputing
        if synchronises and self._broadcast_buffers and self.module.training:
            self._take_buffers()
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, forwards are those of micro-steps that ranks do not reduce."""
        before, self._in_no_sync = self._in_no_sync, True
        try:
            yield
        finally:
            self._in_no_sync = before

    @contextmanager
    def as_rank(self, rank: int) -> Iterator[None]:
        """Inside, random generators and buffers are those of `rank`."""
        outside, self._rank = _Held.of(self.module), rank
        self._held[0] = replace(self._held[0], buffers=outside.buffers)  # or what was made of them
        self._held[rank].restore(self.module)
        try:
            yield
        finally:
            self._held[rank], self._rank = _Held.of(self.module), 0
            replace(outside, buffers=self._held[0].buffers).restore(self.module)

    def backward(self, run_rank: Callable[[int], None]) -> None:
        """Give parameters the gradients that one reduction gives them on every rank.

        Calls `run_rank(rank)` for each rank in turn; it must run forward and backward with that
        rank's data, as often as there are micro-steps. Gradients that are there already are those
        of an earlier reduction, and are accumulated into; where no rank uses a parameter its
        gradient stays what it was.
        """
        parameters = dict(self.module.named_parameters())
        before = {n: None if p.grad is None else p.grad.clone() for n, p in parameters.items()}
        gradients: list[Gradients] = []
        used: set[str] = set()
        self._sent.clear()
        for rank in range(len(self._plan.node_of)):
            for name, parameter in parameters.items():
                earlier = before[name]
                parameter.grad = None if earlier is None else earlier.clone()
            start = {name: _state(parameter.grad) for name, parameter in parameters.items()}
            self._num_received = 0
            with self.as_rank(rank):
                run_rank(rank)
            self._check_forwards(rank)
            used |= {name for name, p in parameters.items() if _state(p.grad) != start[name]}
            gradients.append(
                {
                    n: torch.zeros_like(p) if p.grad is None else p.grad
                    for n, p in parameters.items()
                }
            )
        reduced = reduce_gradients(self._plan.buckets, self._schedules, gradients)
        for name, parameter in parameters.items():
            mean = reduced.get(name, parameter.grad)
            parameter.grad = mean if name in used else before[name]

    def _take_buffers(self) -> None:
        """Those that rank 0 had in its forward of the same number."""
        if self._rank == 0:
            self._sent.append([buffer.clone() for buffer in self.module.buffers()])
            return
        if self._num_received == len(self._sent):
            raise self._uneven(self._rank, f"more than {len(self._sent)}")
        _copy(self.module.buffers(), self._sent[self._num_received])
        self._num_received += 1

    def _check_forwards(self, rank: int) -> None:
        if rank and self._num_received < len(self._sent):
            raise self._uneven(rank, str(self._num_received))

    def _uneven(self, rank: int, num_forwards: str) -> UsageError:
        return UsageError(
            f"rank {rank} makes {num_forwards} training forwards and rank 0 {len(self._sent)}: "
            "each takes rank 0's buffers, so real ranks would wait for one another; let every rank "
            "make as many, or give broadcast_buffers=False"
        )


@dataclass(frozen=True)
class _Held:
    """What a rank has of its own, apart from its data."""

    torch_generator: Tensor
    python_generator: Any
    buffers: list[Tensor]

    @classmethod
    def of(cls, module: nn.Module) -> "_Held":
        buffers = [buffer.clone() for buffer in module.buffers()]
        return cls(torch.get_rng_state(), random.getstate(), buffers)

    def restore(self, module: nn.Module) -> None:
        torch.set_rng_state(self.torch_generator)
        random.setstate(self.python_generator)
        _copy(module.buffers(), self.buffers)


def _state(gradient: Tensor | None) -> tuple[int, int]:
    """Changes with everything that a backward adds."""
    return (0, 0) if gradient is None else (id(gradient), gradient._version)


def reduce_gradients(
    buckets: Sequence[BucketLayout],
    schedules: Mapping[str, Schedule],
    gradients: Sequence[Mapping[str, Tensor]],
) -> Gradients:
    """The mean over ranks of `gradients[rank]`, summed in the order of the plan.

    `schedules`: by the algorithm that a bucket goes through.
    """
    reduced: Gradients = {}
    for bucket in buckets:
        flat = [_flatten(bucket, local) for local in gradients]
        mean = replay(schedules[bucket.algorithm], flat, bucket.segments)[0] / len(gradients)
        parts = torch.split(mean, [*bucket.numels, bucket.status_numel])
        for name, part in zip(bucket.parameters, parts, strict=False):
            reduced[name] = part.view(gradients[0][name].shape).clone()
    return reduced


def _flatten(bucket: BucketLayout, local: Mapping[str, Tensor]) -> Tensor:
    # the status sums to something else, but takes its place in the cuts
    status = torch.zeros(bucket.status_numel, dtype=getattr(torch, bucket.dtype))
    return torch.cat([*(local[name].reshape(-1) for name in bucket.parameters), status])


def _copy(targets: Iterable[Tensor], values: Sequence[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.data.copy_(value)  # .data: autograd may hold these for a backward that is to come
