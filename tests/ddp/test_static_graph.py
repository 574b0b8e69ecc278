"""static_graph: what the first backward used, and how often, every backward does."""

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.ddp.oracle import Job, check_against_reference, noise
from tests.ddp.routed import routed
from tests.ddp.samples import Branches, message, the_one_text, wrap

STATIC = {"static_graph": True}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_static_graph_equals_the_reference(ranks: Any, num_ranks: int, overlap: bool) -> None:
    """Unused on one rank only, and on all ranks, the same in every step."""

    def loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
        inputs = noise(step, rank, micro, shape=(3, 4))
        result: Tensor = module(inputs, "left last" if rank else "left right last").square().sum()
        return result

    job = Job(
        lambda: routed(torch.float32), loss, num_steps=3, arguments={**STATIC, "overlap": overlap}
    )
    trained = check_against_reference(ranks, num_ranks, job)[0]
    assert [step[4:6] for step in trained.gradients] == [[None, None]] * 3
    check_against_reference(ranks, num_ranks, replace(job, num_micro_steps=2))


class Checkpointed(nn.Module):
    """B13: a layer that is used twice, each time computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layers[0](inputs)
        for _ in range(2):
            hidden = checkpoint(self.layers[1], hidden, use_reentrant=True)
        result: Tensor = self.layers[2](hidden)
        return result


@pytest.mark.parametrize("as_view", [True, False])
def test_reentrant_checkpointing_under_a_static_graph(ranks: Any, as_view: bool) -> None:
    """B13: as one process."""
    importlib.import_module("torch._dynamo")  # checkpoint imports it: once, not in each rank
    job = Job(
        Checkpointed,
        lambda module, step, rank, micro: (
            module(noise(step, rank, micro, shape=(3, 4))).square().sum()
        ),
        arguments={**STATIC, "gradient_as_bucket_view": as_view},
    )
    check_against_reference(ranks, 2, job)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ("left right", "left", "no gradient reached 'right.bias', 'right.weight'"),
        ("left", "left right", "got more gradients than in the first backward"),
    ],
)
def test_a_graph_that_is_not_static_is_named(ranks: Any, first: str, then: str, words: str) -> None:
    def body(rank: int) -> str:
        wrapped = wrap(Branches(), **STATIC)
        wrapped(torch.ones(1, 4), first).sum().backward()
        used = then if rank else first
        return message(lambda: wrapped(torch.ones(1, 4), used).sum().backward())

    text = the_one_text(ranks.run(2, body))
    assert text.startswith("ReductionFailed: rank 1: ")
    assert words in text and "static_graph=True" in text
