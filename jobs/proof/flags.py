"""Claims about what the wrapper does when it is asked to: its flags, and the end of a loop."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from jobs.proof.claims import Claim
from jobs.proof.exact import (
    INPUTS,
    OUTPUTS,
    column_sums,
    differing,
    inputs,
    mean_sums,
    weight_gradient,
    wrap,
)
from jobs.proof.lesson import checksum, descend
from jobs.proof.lines import first
from jobs.proof.refusals import ODD_RANK, Branches

FEWEST = 3
"""Batches of rank 0; every other rank has as many more as its number."""


def ask_flagged(rank: int, num_ranks: int) -> list[list[float]]:
    """Gradients of both layers where one rank leaves the second out."""
    del num_ranks
    module = Branches()
    wrapped = wrap(module, find_unused_parameters=True)
    wrapped(inputs(rank), whole=rank != ODD_RANK).sum().backward()
    found = [weight_gradient(module.trunk), weight_gradient(module.twig)]
    wrapped.close()
    return found


def judge_flagged(answers: Sequence[list[list[float]]]) -> str | None:
    users = [rank for rank in range(len(answers)) if rank != ODD_RANK]
    columns = zip(*(column_sums(rank) for rank in users), strict=True)
    wanted = {"trunk": mean_sums(len(answers)), "twig": [sum(c) / len(answers) for c in columns]}
    return first(
        differing(f"rank {rank}, gradient of {name}", found, values)
        for rank, answer in enumerate(answers)
        for found, (name, values) in zip(answer, wanted.items(), strict=True)
    )


def ask_explicit(rank: int, num_ranks: int) -> dict[str, Any]:
    """Two backwards, then the sum that was asked for."""
    del num_ranks
    layer = nn.Linear(INPUTS, OUTPUTS)
    wrapped = wrap(layer, overlap=False, explicit_sync=True)
    for micro_step in (0, 1):
        wrapped(inputs(rank, micro_step)).sum().backward()
    local, sent = weight_gradient(layer), len(wrapped.communication().buckets)
    wrapped.sync_grads()
    mean, buckets = weight_gradient(layer), len(wrapped.communication().buckets)
    planned = len(wrapped.plan.buckets)
    wrapped.close()
    return {"local": local, "mean": mean, "sent": [sent, buckets - planned]}


def judge_explicit(answers: Sequence[dict[str, Any]]) -> str | None:
    both = (0, 1)
    mean = mean_sums(len(answers), both)
    return first(
        differing(f"rank {rank}, {what}", answer[key], wanted)
        for rank, answer in enumerate(answers)
        for what, key, wanted in (
            ("gradient before sync_grads", "local", column_sums(rank, both)),
            ("gradient after it", "mean", mean),
            ("buckets reduced before it, and too many in it", "sent", [0, 0]),
        )
    )


def ask_uneven(rank: int, num_ranks: int) -> list[Any]:
    """How many steps were taken, and what came of them."""
    del num_ranks
    torch.manual_seed(1)
    layer = nn.Linear(INPUTS, OUTPUTS)
    wrapped = wrap(layer)
    taken = 0
    with wrapped.join():
        for micro_step in range(FEWEST + rank):
            layer.zero_grad()
            wrapped(inputs(rank, micro_step)).square().mean().backward()
            descend(layer)
            taken += 1
    wrapped.close()
    return [taken, checksum(layer.parameters())]


def judge_uneven(answers: Sequence[list[Any]]) -> str | None:
    for rank, (taken, held) in enumerate(answers):
        if taken != FEWEST:
            return f"rank {rank} took {taken} steps, not {FEWEST}"
        if held != answers[0][1]:
            return f"rank {rank} holds other parameters than rank 0 after {FEWEST} steps"
    return None


CLAIMS = (
    Claim(
        "explicit sync",
        "two backwards send nothing; sync_grads() gives the mean, exactly",
        ask_explicit,
        judge_explicit,
    ),
    Claim(
        "find unused",
        "one rank leaves a layer out: the mean counts it as zero, exactly",
        ask_flagged,
        judge_flagged,
    ),
    Claim(
        "uneven data",
        f"ranks with 3, 4, 5 and 6 batches inside join(): all end after {FEWEST} steps, as one",
        ask_uneven,
        judge_uneven,
    ),
)
