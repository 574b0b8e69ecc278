"""sync_grads, the lesson's shape; and gradients that nobody reduced before the optimizer's step."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.errors import ReductionFailed
from tests.ddp.oracle import Job, check_against_reference, noise
from tests.ddp.samples import Branches, gradients, message, the_one_text, wrap

EXPLICIT = {"explicit_sync": True, "overlap": False}


class Mlp(nn.Sequential):
    """The lesson's model, in any dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(6)
        layers = [nn.Linear(4, 8, dtype=dtype), nn.Tanh(), nn.Linear(8, 3, dtype=dtype)]
        super().__init__(*layers)


def mlp_loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    inputs = noise(step, rank, micro, shape=(3, 4), dtype=next(module.parameters()).dtype)
    result: Tensor = module(inputs).square().sum()
    return result


@pytest.mark.parametrize(
    ("num_ranks", "dtype", "num_micro_steps"),
    [
        (2, torch.float32, 1),
        (3, torch.bfloat16, 1),
        (3, torch.float64, 3),
    ],
)
def test_the_lessons_loop_equals_the_reference(
    ranks: Any, num_ranks: int, dtype: torch.dtype, num_micro_steps: int
) -> None:
    """Forward, backward, sync_grads, step; backwards before a sync_grads add up."""
    job = Job(lambda: Mlp(dtype), mlp_loss, num_micro_steps=num_micro_steps, arguments=EXPLICIT)
    check_against_reference(ranks, num_ranks, job)


def test_nothing_is_sent_before_sync_grads(ranks: Any) -> None:
    def body(rank: int) -> tuple[int, float, float, int]:
        module = nn.Linear(1, 1, bias=False)
        wrapped = wrap(module, **EXPLICIT)
        wrapped(torch.tensor([[2.0 * rank + 1]])).sum().backward()
        before, local = len(wrapped.communication().buckets), gradients(module)[0].item()
        wrapped.sync_grads()
        return before, local, gradients(module)[0].item(), len(wrapped.communication().buckets)

    assert ranks.run(3, body) == [(0, 1.0, 3.0, 1), (0, 3.0, 3.0, 1), (0, 5.0, 3.0, 1)]


def forget_sync_grads(wrapped: Any) -> None:
    wrapped(torch.ones(1, 4)).sum().backward()


def forget_the_last_micro_step(wrapped: Any) -> None:
    with wrapped.no_sync():
        wrapped(torch.ones(1, 4)).sum().backward()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(
    ("forget", "arguments", "remedy"),
    [
        (forget_sync_grads, EXPLICIT, "call sync_grads() after backward"),
        (forget_the_last_micro_step, {}, "outside no_sync()"),
    ],
)
def test_an_optimizer_never_uses_gradients_that_were_not_reduced(
    ranks: Any, optimizer: Any, forget: Any, arguments: dict[str, Any], remedy: str
) -> None:
    """Raised before it has changed a byte, on the rank that forgot and on the one that did not."""
    importlib.import_module("torch._dynamo")  # optimizers import it: once here, not in each rank

    def body(rank: int) -> tuple[str, bool]:
        module = Branches()
        wrapped = wrap(module, **arguments)
        before = wrapped.verify_parameters()
        forget(wrapped)
        if rank == 1:
            text = message(optimizer(module.parameters(), lr=0.1).step)
        elif arguments:
            text = message(wrapped.sync_grads)
        else:
            text = message(lambda: wrapped(torch.ones(1, 4)).sum().backward())
        return text, wrapped.verify_parameters() == before

    values = ranks.run(2, body)
    text = the_one_text([text for text, _ in values])
    assert text.startswith("ReductionFailed: rank 1: the optimizer was about to step with ")
    assert "'left.weight', 'left.bias'" in text
    assert remedy in text
    assert [same for _, same in values] == [True, True]


def test_an_optimizer_of_other_parameters_may_step(ranks: Any) -> None:
    """As with two models in turn: one's step leaves gradients in the other."""
    importlib.import_module("torch._dynamo")

    def body(rank: int) -> list[list[float]]:
        other = nn.Linear(1, 1)
        other.weight.grad = torch.ones(1, 1)
        module = Branches()
        wrapped = wrap(module, **EXPLICIT)
        wrapped(torch.full((1, 4), float(rank))).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
        wrapped.sync_grads()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        wrapped.close()
        torch.optim.SGD(module.parameters(), lr=0.1).step()  # the guard went with the wrapper
        return module.left.weight.tolist()

    first, second = ranks.run(2, body)
    assert first == second


def test_a_wrapper_that_stopped_lets_no_optimizer_step(ranks: Any) -> None:
    """Also where the script swallows the error."""
    importlib.import_module("torch._dynamo")

    def body(rank: int) -> str:
        module = Branches()
        wrapped = wrap(module)
        loss = wrapped(torch.ones(1, 4), "left right" if rank else "right").sum()
        with pytest.raises(ReductionFailed):
            loss.backward()
        return message(torch.optim.SGD(module.parameters(), lr=0.1).step)

    assert "'left.bias', 'left.weight'" in the_one_text(ranks.run(2, body))


def test_arguments_that_do_not_go_together(ranks: Any) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"explicit_sync": True}, "overlap=False"),
        ({**EXPLICIT, "static_graph": True}, "leave it out"),
        ({"lesson_deadlock": True, "find_unused_parameters": True}, "the cure"),
    ]

    def body(_rank: int) -> list[str]:
        refused = [message(lambda a=a: wrap(Branches(), **a)) for a, _ in cases]
        return [*refused, message(wrap(Branches(), overlap=False).sync_grads)]

    *refused, automatic = ranks.run(1, body)[0]
    for text, (_, words) in zip(refused, cases, strict=True):
        assert text.startswith("UsageError") and words in text
    assert automatic.startswith("UsageError: sync_grads() on a wrapper that reduces in backward")


def test_sync_grads_names_a_parameter_without_gradient(ranks: Any) -> None:
    def body(rank: int) -> tuple[str, list[bool]]:
        wrapped = wrap(Branches(), **EXPLICIT)
        wrapped(torch.ones(1, 4), "left right" if rank else "left").sum().backward()
        text = message(wrapped.sync_grads)
        found = wrap(Branches(), **EXPLICIT, find_unused_parameters=True)
        found(torch.ones(1, 4), "left").sum().backward()
        found.sync_grads()
        return text, [p.grad is None for p in found.module.parameters()]

    values = ranks.run(2, body)
    assert "rank 0: no gradient reached 'right." in the_one_text([text for text, _ in values])
    assert [missing for _, missing in values] == [[False, False, True, True]] * 2
