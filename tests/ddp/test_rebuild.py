"""Buckets made again after the first backward, in the order in which gradients came."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp import replanning
from ddp.plan import ReductionPlan
from tests.ddp.oracle import Job, check_against_reference, noise
from tests.ddp.samples import Branches, message, the_one_text, train, wrap


class Shuffled(nn.Module):
    """Layers used in another order than they are registered in: 2, 0, 3, 1."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False, dtype=dtype) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        for place in (2, 0, 3, 1):
            hidden = self.layers[place](hidden).tanh()
        return hidden


def shuffled_loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    inputs = noise(step, rank, micro, shape=(3, 8), dtype=next(module.parameters()).dtype)
    result: Tensor = module(inputs).square().sum()
    return result


def places(plan: dict[str, object]) -> list[list[int]]:
    buckets = ReductionPlan.from_json(plan).buckets
    return [[int(name.split(".")[-2]) for name in bucket.parameters] for bucket in buckets]


@pytest.mark.parametrize(
    ("num_ranks", "dtype", "arguments"),
    [
        (2, torch.float32, {}),
        (3, torch.bfloat16, {"gradient_as_bucket_view": False}),
        (3, torch.float32, {"static_graph": True}),
        (2, torch.float64, {"algorithm": "hierarchical", "overlap": False}),
    ],
)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_second_plan_equals_the_reference(
    ranks: Any, num_ranks: int, dtype: torch.dtype, arguments: dict[str, Any], set_to_none: bool
) -> None:
    """Also where gradients are zeroed in place, so that they lie in memory of the first buckets."""
    two_layers_mb = 2 * 64 * dtype.itemsize / 2**20
    job = Job(
        lambda: Shuffled(dtype),
        shuffled_loss,
        set_to_none=set_to_none,
        arguments={"per_parameter": False, "bucket_cap_mb": two_layers_mb, **arguments},
    )
    plans = check_against_reference(ranks, num_ranks, job)[0].plans
    assert [places(plan) for plan in plans] == [[[3, 2], [1, 0]]] + [[[1, 3], [0, 2]]] * 2


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ({"rebuild_buckets": False}, False),
        ({"find_unused_parameters": True}, False),
        ({"explicit_sync": True, "overlap": False}, False),
        ({}, True),
    ],
)
def test_when_the_plan_changes(ranks: Any, arguments: dict[str, Any], changes: bool) -> None:
    def body(_rank: int) -> tuple[str, str, str]:
        wrapped = wrap(Shuffled(), **arguments)
        plans = [wrapped.plan.sha256]
        for _ in range(2):
            wrapped(torch.ones(1, 8)).sum().backward()
            if "explicit_sync" in arguments:
                wrapped.sync_grads()
            plans.append(wrapped.plan.sha256)
        wrapped.close()
        return plans[0], plans[1], plans[2]

    first, second = ranks.run(2, body)
    assert first == second
    assert first[1] == first[2]
    assert (first[0] != first[1]) == changes


def test_rank_0_decides_and_ranks_that_saw_another_order_follow(ranks: Any) -> None:
    class Either(Branches):
        def forward(self, inputs: Tensor, used: str = "") -> Tensor:
            return super().forward(inputs, used)

    def body(rank: int) -> list[tuple[str, ...]]:
        torch.manual_seed(1)
        wrapped = wrap(Either())
        wrapped(torch.ones(1, 4), "left right" if rank else "right left").sum().backward()
        order = [bucket.parameters for bucket in wrapped.plan.buckets]
        wrapped(torch.ones(1, 4), "left right" if rank else "right left").sum().backward()
        return order

    first, second, third = ranks.run(3, body)
    assert first == second == third
    assert first == [("left.bias",), ("left.weight",), ("right.bias",), ("right.weight",)]


def test_ranks_that_make_different_plans_stop(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Different versions of this package, say."""
    make_plan = replanning.make_plan

    def body(rank: int) -> str:
        def other(*arguments: Any) -> ReductionPlan:
            plan = make_plan(*arguments)
            again = len(arguments) == 6 and rank == 1
            return replace(plan, buckets=plan.buckets[::-1]) if again else plan

        monkeypatch.setattr(replanning, "make_plan", other)
        wrapped = wrap(Branches())
        return message(lambda: (train(wrapped), train(wrapped)))

    text = the_one_text(ranks.run(2, body))
    assert "rank 1: buckets for the next steps" in text
    assert "another reduction plan than rank 0" in text
