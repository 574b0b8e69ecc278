"""Claims about whole trainings: after each step all ranks hold the bytes of one process.

That process takes every rank's data, random numbers and buffers in turn and replays the plan that
the ranks agreed on; it shares no hooks, buckets or sockets with them. For `native`, whose order of
sums is its own, ranks must agree with one another; for `noop` they must drift apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ddp import DistributedDataParallel, Fabric, ReductionPlan, Reference
from jobs.proof.claims import Claim
from jobs.proof.exact import wrap
from jobs.proof.lesson import checksum, descend
from jobs.proof.lines import first
from jobs.proof.variants import variants

SMALL_BUCKET_MB = 0.002
UNEQUAL = Fabric((1, 0, 0, 0))
"""Of four ranks two by two, a hierarchy adds the same pairs whatever it does: this shows order."""
FEATURES, WIDTH, BATCH = 5, 31, 6
SEED = 40


@dataclass(frozen=True)
class Training:
    """What is trained: plain data, the same on all ranks."""

    arguments: tuple[tuple[str, Any], ...]
    normalized: bool = False
    dropout: bool = False
    reordered: bool = False
    micro_steps: int = 1
    steps: int = 3

    def build(self) -> nn.Module:
        torch.manual_seed(3)
        if self.reordered:
            return Reordered()
        norm = [nn.BatchNorm1d(WIDTH)] if self.normalized else []
        drop = [nn.Dropout(0.4)] if self.dropout else []
        head = [nn.GELU(), *drop, nn.Linear(WIDTH, 17), nn.Linear(17, 3)]
        return nn.Sequential(nn.Linear(FEATURES, WIDTH), *norm, *head)

    @property
    def broadcasts(self) -> bool:
        return bool(dict(self.arguments).get("broadcast_buffers", True))


class Reordered(nn.Module):
    """Layers that are used in another order than they are registered in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:  # (BATCH, FEATURES), as it stays
        for place in (2, 0, 3, 1):
            hidden = self.layers[place](hidden).tanh()
        return hidden


def loss_of(module: nn.Module, step: int, rank: int, micro_step: int) -> Tensor:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * micro_step + rank)
    batch = torch.randn(BATCH, FEATURES, generator=generator)
    loss: Tensor = module(batch).square().mean()
    return loss


def ask_training(training: Training, rank: int, num_ranks: int) -> dict[str, Any]:
    """The plan of each step, and the checksums of parameters and buffers after it."""
    del num_ranks
    module = training.build()
    wrapped = wrap(module, **dict(training.arguments))
    torch.manual_seed(SEED + rank)
    plans, parameters, buffers = [], [], []
    for step in range(training.steps):
        plans.append(wrapped.plan.to_json())
        module.zero_grad()
        run_backwards(wrapped, training, step, rank)
        descend(module)
        parameters.append(checksum(module.parameters()))
        buffers.append(checksum(module.buffers()))
    wrapped.close()
    return {"plans": plans, "parameters": parameters, "buffers": buffers}


def run_backwards(
    wrapped: DistributedDataParallel | Reference, training: Training, step: int, rank: int
) -> None:
    """One step's micro-steps on one rank; the last is the one that is reduced."""
    with wrapped.no_sync():
        for micro_step in range(1, training.micro_steps):
            loss_of(wrapped, step, rank, micro_step).backward()  # type: ignore[no-untyped-call]
    loss_of(wrapped, step, rank, 0).backward()  # type: ignore[no-untyped-call]


def train_here(
    training: Training, plans: Sequence[ReductionPlan]
) -> Iterator[tuple[str, list[str]]]:
    """Checksums after each step of one process, by the plan of each: the parameters', and those
    of the buffers of each rank.
    """
    module = training.build()
    reference = Reference(module, plans[0], broadcast_buffers=training.broadcasts)
    ranks = range(len(plans[0].node_of))
    for rank in ranks:
        with reference.as_rank(rank):
            torch.manual_seed(SEED + rank)
    for step, plan in enumerate(plans):
        reference.plan = plan
        module.zero_grad()
        reference.backward(partial(run_backwards, reference, training, step))
        descend(module)
        buffers = []
        for rank in ranks:
            with reference.as_rank(rank):
                buffers.append(checksum(module.buffers()))
        yield checksum(module.parameters()), buffers


def judge_training(training: Training, answers: Sequence[dict[str, Any]]) -> str | None:
    for rank, answer in enumerate(answers):
        if answer["plans"] != answers[0]["plans"]:
            return f"rank {rank} has other plans than rank 0"
    plans = [ReductionPlan.from_json(plan) for plan in answers[0]["plans"]]
    for step, (parameters, buffers) in enumerate(train_here(training, plans)):
        for rank, answer in enumerate(answers):
            wanted = {"parameters": parameters, "buffers": buffers[rank]}
            for what, expected in wanted.items():
                if answer[what][step] != expected:
                    return (
                        f"step {step + 1}: rank {rank} holds {what} {answer[what][step]}, "
                        f"one process {expected}"
                    )
    return None


def judge_rebuilt(training: Training, answers: Sequence[dict[str, Any]]) -> str | None:
    plans = answers[0]["plans"]
    if plans[0] == plans[1] or plans[1] != plans[2]:
        return "the plan did not change after the first step, and only there"
    return judge_training(training, answers)


def judge_agreement(answers: Sequence[dict[str, Any]]) -> str | None:
    for step, wanted in enumerate(answers[0]["parameters"]):
        for rank, answer in enumerate(answers):
            if answer["parameters"][step] != wanted:
                return f"step {step + 1}: rank {rank} holds other parameters than rank 0"
    return None


def judge_drift(answers: Sequence[dict[str, Any]]) -> str | None:
    held = [answer["parameters"][0] for answer in answers]
    twins = [rank for rank, each in enumerate(held) if each in held[:rank]]
    return first(
        f"step 1: rank {rank} holds the parameters of another rank, though nothing is sent"
        for rank in twins
    )


def ask_variants(rank: int, num_ranks: int) -> dict[str, list[str]]:
    """The same plan carried out in other ways."""
    found = {}
    for name, arguments in VARIANTS.items():
        training = Training((*arguments.items(), ("bucket_cap_mb", SMALL_BUCKET_MB)))
        found[name] = ask_training(training, rank, num_ranks)["parameters"]
    return found


VARIANTS: dict[str, dict[str, Any]] = {
    "during backward": {},
    "after backward": {"overlap": False},
    "gradients apart from buckets": {"gradient_as_bucket_view": False},
}


def judge_variants(answers: Sequence[dict[str, list[str]]]) -> str | None:
    wanted = answers[0]["during backward"]
    return first(
        f"step {step + 1}, reduced {name}: rank {rank} holds other parameters"
        for rank, answer in enumerate(answers)
        for name, steps in answer.items()
        for step, found in enumerate(steps)
        if found != wanted[step]
    )


def of_algorithms() -> Iterator[Claim]:
    """A claim for each algorithm and ring order."""
    for variant in variants():
        arguments: dict[str, Any] = {
            "algorithm": variant.algorithm.name,
            "ring_order": variant.ring_order,
            "ring_seed": variant.ring_seed,
            "fabric": UNEQUAL,
        }
        if variant.algorithm.build is not None:
            says = "3 steps in several buckets and segments: the bytes of one process"
            yield _claim(variant.name, says, {**arguments, "segments": 3})
            continue
        question = partial(ask_training, Training(tuple(arguments.items())))
        if variant.algorithm.proof == "none":
            says = "nothing is sent, and ranks drift apart: no way to train"
            yield Claim(variant.name, says, question, judge_drift)
        else:
            says = "3 steps: every rank holds the same bytes"
            yield Claim(variant.name, says, question, judge_agreement)


def _claim(name: str, says: str, arguments: dict[str, Any], **more: Any) -> Claim:
    arguments = {"bucket_cap_mb": SMALL_BUCKET_MB, **arguments}
    training = Training(tuple(arguments.items()), **more)
    return Claim(name, says, partial(ask_training, training), partial(judge_training, training))


REORDERED = Training((("bucket_cap_mb", 0.0003),), reordered=True)
CLAIMS = (
    Claim(
        "overlap",
        f"{len(VARIANTS)} ways to carry out one plan: the same bytes",
        ask_variants,
        judge_variants,
    ),
    _claim("per parameter", "a bucket for each: the bytes of one process", {"per_parameter": True}),
    _claim("accumulation", "3 micro-steps a step: the bytes of one process", {}, micro_steps=3),
    _claim("static graph", "the bytes of one process", {"static_graph": True}),
    Claim(
        "rebuilt buckets",
        "gradients come in another order: a new plan on all ranks, bytes by the plan of each step",
        partial(ask_training, REORDERED),
        partial(judge_rebuilt, REORDERED),
    ),
    _claim(
        "dropout",
        "each rank drops by numbers of its own, 3 micro-steps a step: the bytes of one process",
        {},
        dropout=True,
        micro_steps=3,
    ),
    _claim(
        "batch norm",
        "parameters, and the statistics of each rank, which begin as rank 0's: bytes",
        {},
        normalized=True,
    ),
    _claim(
        "batch norm apart",
        "broadcast_buffers=False: parameters, and each rank's own statistics: bytes",
        {"broadcast_buffers": False},
        normalized=True,
    ),
)
