"""Faults that people reported of wrappers like this one, each as its whole kind.

The numbers are those of the collection of cases. Others are tested where their subject is: odd
models in test_cases_models, B12 in test_parallel, B14 in test_unused, B20 in test_join.
"""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ddp.samples import gradients, integers, linear, message, the_one_text, wrap


@pytest.mark.parametrize("evaluate", ["no_grad", "inference", "eval_mode"])
def test_one_rank_alone_may_evaluate(ranks: Any, evaluate: str) -> None:
    """B10: with buffers, in the middle of training."""

    def body(rank: int) -> list[Any]:
        torch.manual_seed(rank)
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        wrapped = wrap(module, timeout_s=20)
        for step in range(2):
            module.zero_grad()
            wrapped(integers(rank + step, 5, 3)).square().sum().backward()
            if rank == 0:
                module.train(evaluate != "eval_mode")
                with {
                    "no_grad": torch.no_grad,
                    "inference": torch.inference_mode,
                    "eval_mode": torch.no_grad,
                }[evaluate]():
                    wrapped(integers(7, 5, 3))
                module.train()
        return [gradient.tolist() for gradient in gradients(module)]

    first, second = ranks.run(2, body)
    assert first == second


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_going_around_the_wrapper_is_reduced_all_the_same(ranks: Any, num_ranks: int) -> None:
    """B15: `.module`, or another method of it."""

    class Method(nn.Linear):
        def score(self, inputs: Tensor) -> Tensor:
            return self(inputs).sum()

    def body(rank: int) -> list[float]:
        found = []
        for overlap in (True, False):
            wrapped = wrap(Method(1, 1, bias=False), overlap=overlap)
            module: Any = wrapped.module
            inputs = torch.tensor([[2.0 * rank]])
            for call in (lambda x, m=module: m(x).sum(), module.score):
                module.zero_grad()
                call(inputs).backward()
                found.append(module.weight.grad.item())
            wrapped.close()
        return found

    assert ranks.run(num_ranks, body) == [[num_ranks - 1.0] * 4] * num_ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load_in_both_directions(ranks: Any, dtype: torch.dtype, tmp_path: Any) -> None:
    """B17: keys begin with "module."; without it they are the bare model's."""

    def body(rank: int) -> tuple[list[Any], list[Any], list[str]]:
        bare, path = linear(3).to(dtype), tmp_path / f"{rank}.pt"
        torch.save(bare.state_dict(), path)
        wrapped = wrap(linear(rank).to(dtype))
        wrapped.module.load_state_dict(torch.load(path))  # bare into wrapped
        wrapped(integers(rank, 4, 3).to(dtype)).sum().backward()
        with torch.no_grad():
            for parameter in wrapped.parameters():
                parameter -= parameter.grad  # type: ignore[operator]
        torch.save(wrapped.state_dict(), path)
        again = wrap(linear(rank).to(dtype))
        again.load_state_dict(torch.load(path))  # wrapped into wrapped
        loaded = linear(rank).to(dtype)
        stripped = {k.removeprefix("module."): v for k, v in torch.load(path).items()}
        loaded.load_state_dict(stripped)  # wrapped into bare
        trained = [p.tolist() for p in wrapped.parameters()]
        assert trained == [p.tolist() for p in again.parameters()]
        texts = [
            message(lambda: torch.save(wrapped, path)),
            message(lambda: copy.deepcopy(wrapped)),
        ]
        return trained, [p.tolist() for p in loaded.parameters()], texts

    values = ranks.run(2, body)
    assert values[0][0] == values[1][0]
    for trained, loaded, texts in values:
        assert trained == loaded
        assert trained[0] != linear(3).to(dtype).weight.tolist()
        text = the_one_text(texts)
        assert text.startswith("UsageError") and "wrapper.module" in text


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("overlap", [True, False])
def test_clipping_after_the_last_reduction(ranks: Any, num_ranks: int, overlap: bool) -> None:
    """B18: one norm on all ranks, that of one process with all data, with accumulation."""

    def micro_batches(rank: int) -> list[Tensor]:
        return [integers(rank + 5 * micro, 4, 3) for micro in range(2)]

    def body(rank: int) -> tuple[float, list[Any]]:
        module = linear(0)
        wrapped = wrap(module, overlap=overlap)
        for index, batch in enumerate(micro_batches(rank)):
            with wrapped.no_sync() if index == 0 else nullcontext():
                (wrapped(batch).square().sum() / 2).backward()
        norm = float(nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0))
        return norm, [gradient.tolist() for gradient in gradients(module)]

    single = linear(0)
    for rank in range(num_ranks):
        for batch in micro_batches(rank):
            (single(batch).square().sum() / 2 / num_ranks).backward()
    wanted = float(nn.utils.clip_grad_norm_(single.parameters(), 1.0))
    values = ranks.run(num_ranks, body)
    assert wanted > 1, "a norm that is not clipped proves nothing"
    for norm, clipped in values:
        assert norm == values[0][0] == pytest.approx(wanted, rel=1e-6)
        assert clipped == values[0][1]
        for one, other in zip(clipped, gradients(single), strict=True):
            assert torch.allclose(torch.tensor(one), other, rtol=1e-5)


def test_sparse_gradients_are_refused_at_wrap_and_dense_ones_are_right(ranks: Any) -> None:
    """B21: also on a rank whose batch is all padding."""

    def body(rank: int) -> tuple[str, list[Any]]:
        sparse = nn.Sequential(nn.Embedding(5, 2, padding_idx=0, sparse=True), nn.Linear(2, 2))
        refused = message(lambda: wrap(sparse))
        module = nn.Embedding(5, 2, padding_idx=0)
        wrapped = wrap(module)
        words = torch.tensor([0, 0, 0] if rank == 0 else [1, 3, 3])
        wrapped(words).sum().backward()
        return refused, module.weight.grad.tolist()  # type: ignore[union-attr]

    values = ranks.run(2, body)
    assert the_one_text([text for text, _ in values]) == (
        "UsageError: rank 0: '0' makes sparse gradients: use sparse=False"
    )
    wanted = [[0.0, 0.0], [0.5, 0.5], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert [gradient for _, gradient in values] == [wanted] * 2


def test_the_mean_of_unequal_batches(ranks: Any) -> None:
    """B22: the mean is over ranks; a loss weighted by its share of the samples gives the global."""
    inputs = torch.tensor([[1.0], [2.0], [3.0], [8.0]])  # 3 samples on rank 0, 1 on rank 1

    def body(rank: int) -> tuple[float, float]:
        module = nn.Linear(1, 1, bias=False)
        wrapped = wrap(module)
        share = inputs[:3] if rank == 0 else inputs[3:]
        found = []
        for weight in (1.0, len(share) * 2 / len(inputs)):
            module.zero_grad()
            (wrapped(share).mean() * weight).backward()
            found.append(module.weight.grad.item())  # type: ignore[union-attr]
        return found[0], found[1]

    assert ranks.run(2, body) == [((2.0 + 8.0) / 2, 14.0 / 4)] * 2


CHANGES: dict[str, Any] = {
    "frozen": lambda module: module[0].weight.requires_grad_(False),
    "replaced": lambda module: setattr(module[0], "weight", nn.Parameter(torch.ones(3, 3))),
    "converted": lambda module: module.double(),
    "added": lambda module: module.append(nn.Linear(3, 3)),
    "removed": lambda module: module.pop(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_module_that_changes_after_wrapping_stops_all_ranks(ranks: Any, change: str) -> None:
    """By name, on all ranks, though only one has changed it."""

    def body(rank: int) -> str:
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        wrapped = wrap(module, timeout_s=20)
        wrapped(torch.ones(1, 3)).sum().backward()
        module.zero_grad()
        if rank == 1:
            CHANGES[change](module)
        return message(lambda: wrapped(torch.ones(1, 3)).sum().backward())

    text = the_one_text(ranks.run(2, body))
    assert text.startswith("ReductionFailed: rank 1: parameter '")
    assert change in text


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("overlap", [True, False])
def test_which_half_decides(ranks: Any, num_ranks: int, overlap: bool) -> None:
    """B02, over dtypes: the forward; a backward outside no_sync after a forward inside is local."""

    def body(rank: int) -> list[tuple[float, float]]:
        found = []
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            module = nn.Linear(1, 1, bias=False, dtype=dtype)
            wrapped = wrap(module, overlap=overlap)
            inputs = torch.tensor([[rank + 1.0]], dtype=dtype)
            values = []
            for forward_inside in (True, False):
                module.zero_grad()
                with wrapped.no_sync() if forward_inside else nullcontext():
                    loss = wrapped(inputs).sum()
                with nullcontext() if forward_inside else wrapped.no_sync():
                    loss.backward()
                values.append(module.weight.grad.item())  # type: ignore[union-attr]
            found.append((values[0], values[1]))
            wrapped.close()
        return found

    mean = (num_ranks + 1) / 2
    wanted = [[(rank + 1.0, mean)] * 3 for rank in range(num_ranks)]
    assert ranks.run(num_ranks, body) == wanted


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("arguments", [{"overlap": True}, {"overlap": False}])
def test_second_backwards_and_autograd_grad(
    ranks: Any, num_ranks: int, arguments: dict[str, Any]
) -> None:
    """B12, over dtypes: every backward is reduced, autograd.grad is local and disturbs nothing."""

    def body(rank: int) -> list[tuple[float, float, float]]:
        found = []
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            module = nn.Linear(1, 1, bias=False, dtype=dtype)
            wrapped = wrap(module, **arguments)
            loss = wrapped(torch.tensor([[3.0 * (rank + 1)]], dtype=dtype)).sum()
            (alone,) = torch.autograd.grad(loss, module.weight, retain_graph=True)
            loss.backward(retain_graph=True)
            once = module.weight.grad.item()  # type: ignore[union-attr]
            loss.backward()
            found.append((alone.item(), once, module.weight.grad.item()))  # type: ignore[union-attr]
            wrapped.close()
        return found

    mean = 3.0 * (num_ranks + 1) / 2
    wanted = [[(3.0 * (rank + 1), mean, 2 * mean)] * 3 for rank in range(num_ranks)]
    assert ranks.run(num_ranks, body) == wanted
