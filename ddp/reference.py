"""The oracle: one process that trains on every rank's data in turn, with the ranks' own plan.

Owns what distributed training must equal. Uses replay, never the executor, hooks or buckets of
the real thing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ddp.algorithms import is_known
from ddp.errors import PlanError
from ddp.plan import BucketLayout, ReductionPlan
from ddp.replay import replay
from ddp.schedule import Schedule

Gradients = dict[str, Tensor]


class Reference:
    """Gives `module` the gradients that `plan` gives every rank: same bytes, same machine type.

    `backward(run_rank)` calls `run_rank(rank)` for each rank in turn; it must run forward and
    backward on `module` with that rank's data, as often as there are micro-steps. Gradients that
    are there already are those of an earlier reduction, and are accumulated into; where no rank
    uses a parameter its gradient stays what it was. Buffers end as rank 0 leaves them. `plan` may
    be replaced between backwards. Raises PlanError for a plan whose algorithm has no schedule.
    """

    def __init__(self, module: nn.Module, plan: ReductionPlan) -> None:
        self._module = module
        self.plan = plan

    @property
    def plan(self) -> ReductionPlan:
        """What is replayed."""
        return self._plan

    @plan.setter
    def plan(self, plan: ReductionPlan) -> None:
        schedule = plan.schedule() if is_known(plan.algorithm) else None
        if schedule is None:
            raise PlanError(f"{plan.algorithm} has no schedule, so there is nothing to replay")
        self._plan, self._schedule = plan, schedule

    def backward(self, run_rank: Callable[[int], None]) -> None:
        parameters = dict(self._module.named_parameters())
        before = {n: None if p.grad is None else p.grad.clone() for n, p in parameters.items()}
        buffers = [buffer.clone() for buffer in self._module.buffers()]
        after: list[Tensor] = []
        gradients: list[Gradients] = []
        used: set[str] = set()
        for rank in range(len(self._plan.node_of)):
            _copy(self._module.buffers(), buffers)
            for name, parameter in parameters.items():
                earlier = before[name]
                parameter.grad = None if earlier is None else earlier.clone()
            start = {name: _state(parameter.grad) for name, parameter in parameters.items()}
            run_rank(rank)
            used |= {name for name, p in parameters.items() if _state(p.grad) != start[name]}
            gradients.append(
                {
                    n: torch.zeros_like(p) if p.grad is None else p.grad
                    for n, p in parameters.items()
                }
            )
            after = after or [buffer.clone() for buffer in self._module.buffers()]
        _copy(self._module.buffers(), after)
        reduced = reduce_gradients(self._plan.buckets, self._schedule, gradients)
        for name, parameter in parameters.items():
            mean = reduced.get(name, parameter.grad)
            parameter.grad = mean if name in used else before[name]


def _state(gradient: Tensor | None) -> tuple[int, int]:
    """Changes with everything that a backward adds."""
    return (0, 0) if gradient is None else (id(gradient), gradient._version)


def reduce_gradients(
    buckets: Sequence[BucketLayout], schedule: Schedule, gradients: Sequence[Mapping[str, Tensor]]
) -> Gradients:
    """The mean over ranks of `gradients[rank]`, summed in the order of the plan."""
    reduced: Gradients = {}
    for bucket in buckets:
        flat = [_flatten(bucket, local) for local in gradients]
        mean = replay(schedule, flat, bucket.segments)[0] / len(gradients)
        parts = torch.split(mean, [*bucket.numels, bucket.status_numel])
        for name, part in zip(bucket.parameters, parts, strict=False):
            reduced[name] = part.view(gradients[0][name].shape).clone()
    return reduced


def _flatten(bucket: BucketLayout, local: Mapping[str, Tensor]) -> Tensor:
    # the status sums to something else, but takes its place in the cuts
    status = torch.zeros(bucket.status_numel, dtype=getattr(torch, bucket.dtype))
    return torch.cat([*(local[name].reshape(-1) for name in bucket.parameters), status])


def _copy(targets: Iterable[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
