"""Trains the same job on ranks and in the reference, and compares the bytes after every step.

A job says how to build its module, what a rank does with it in a step (the last backward is the
one that is reduced), and how many steps there are. Each rank has random numbers of its own.
Optimizer: plain SGD, written out, so that a process does not load torch's compiler.
"""

import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ddp.plan import ReductionPlan
from ddp.reference import Reference
from tests.ddp.samples import wrap

Losses = Callable[[nn.Module, int, int], list[Tensor]]  # module, step, rank: by micro-step
Bytes = list[bytes | None]


@dataclass(frozen=True)
class Job:
    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int, int, int], Tensor]  # module, step, rank, micro-step
    num_steps: int = 3
    num_micro_steps: int = 1
    set_to_none: bool | None = True  # None: gradients are not zeroed between steps
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """What one rank ended each step with, and the plan of that step."""

    gradients: list[Bytes]
    parameters: list[Bytes]
    buffers: list[Bytes]
    plans: list[dict[str, object]]


def seed(rank: int) -> None:
    """As ranks do once the model is built: from here on each draws numbers of its own."""
    torch.manual_seed(70 + rank)
    random.seed(80 + rank)


def train_wrapped(job: Job, rank: int) -> Trained:
    module = job.build()
    wrapped = wrap(module, **job.arguments)
    seed(rank)
    trained = Trained([], [], [], [])
    for step in range(job.num_steps):
        zero(module, job.set_to_none)
        trained.plans.append(wrapped.plan.to_json())
        for micro in range(job.num_micro_steps):
            last = micro == job.num_micro_steps - 1
            with nullcontext() if last else wrapped.no_sync():
                job.loss(wrapped, step, rank, micro).backward()
        if job.arguments.get("explicit_sync"):
            wrapped.sync_grads()
        note(module, trained)
        trained.buffers.append(bytes_of(module.buffers()))
    wrapped.close()
    return trained


def train_reference(job: Job, plans: list[dict[str, object]]) -> list[Trained]:
    """By rank; they differ in their buffers alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module = job.build()
    synced = job.arguments.get("broadcast_buffers", True)
    reference = Reference(module, ReductionPlan.from_json(plans[0]), broadcast_buffers=synced)
    num_ranks = len(reference.plan.node_of)
    trained = Trained([], [], [], plans)
    buffers: list[list[Bytes]] = [[] for _ in range(num_ranks)]
    for rank in range(num_ranks):
        with reference.as_rank(rank):
            seed(rank)
    for step in range(job.num_steps):
        zero(module, job.set_to_none)
        reference.plan = ReductionPlan.from_json(plans[step])

        def run_rank(rank: int, step: int = step) -> None:
            for micro in range(job.num_micro_steps):
                last = micro == job.num_micro_steps - 1
                with nullcontext() if last else reference.no_sync():
                    job.loss(reference, step, rank, micro).backward()

        reference.backward(run_rank)
        note(module, trained)
        for rank, own in enumerate(buffers):
            with reference.as_rank(rank):
                own.append(bytes_of(module.buffers()))
    torch.set_num_threads(threads)
    return [replace(trained, buffers=own) for own in buffers]


def check_against_reference(ranks: Any, num_ranks: int, job: Job) -> list[Trained]:
    """Gradients, parameters and buffers of every rank, after every step: the reference's bytes."""
    values: list[Trained] = ranks.run(num_ranks, lambda rank: train_wrapped(job, rank))
    by_rank = train_reference(job, values[0].plans)
    for rank, (found, wanted) in enumerate(zip(values, by_rank, strict=True)):
        for step in range(job.num_steps):
            assert found.plans[step] == wanted.plans[step], (rank, step)
            assert found.gradients[step] == wanted.gradients[step], (rank, step)
            assert found.parameters[step] == wanted.parameters[step], (rank, step)
            assert found.buffers[step] == wanted.buffers[step], (rank, step)
    return values


def zero(module: nn.Module, set_to_none: bool | None) -> None:
    if set_to_none is not None:
        module.zero_grad(set_to_none=set_to_none)


def note(module: nn.Module, trained: Trained) -> None:
    """Keep this step's gradients, then take the step."""
    trained.gradients.append(bytes_of(p.grad for p in module.parameters()))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad
    trained.parameters.append(bytes_of(module.parameters()))


def bytes_of(tensors: Iterable[Tensor | None]) -> Bytes:
    return [_bytes(tensor) for tensor in tensors]


def _bytes(tensor: Tensor | None) -> bytes | None:
    if tensor is None:
        return None
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def noise(*key: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that `key` alone decides."""
    seed = sum(value * 1_000**place for place, value in enumerate(key))
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
