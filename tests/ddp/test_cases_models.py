"""Faults that people reported of odd models: bytes of one process, over dtypes, modes and ranks.

The numbers are those of the collection of cases.
"""

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.ddp.oracle import Job, check_against_reference, noise
from tests.ddp.samples import wrap

KINDS = [
    (2, torch.float32, {"overlap": True}),
    (3, torch.float64, {"overlap": False}),
    (3, torch.bfloat16, {"overlap": True, "per_parameter": False}),
    (2, torch.float32, {"overlap": False, "explicit_sync": True}),
]


def square_loss(width: int) -> Any:
    def loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
        matrices = (p for p in module.parameters() if p.dim() == 2 and p.numel())
        dtype = next(p.dtype for p in matrices if not p.is_complex())
        result = module(noise(step, rank, micro, shape=(3, width), dtype=dtype))
        return result.abs().square().sum()

    return loss


class Tied(nn.Module):
    """B05: one weight under two names, beside an empty parameter and a frozen one (B07)."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(4, 4, dtype=dtype)
        self.second = nn.Linear(4, 4, dtype=dtype)
        self.second.weight = self.first.weight
        self.nothing = nn.Parameter(torch.empty(0, 4, dtype=dtype))
        self.empty = nn.Parameter(torch.empty(0, dtype=dtype))
        self.frozen = nn.Parameter(torch.ones(4, dtype=dtype), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.second(self.first(inputs).tanh()) * self.frozen
        return torch.cat([hidden, inputs @ self.nothing.T], dim=1)


class Mixed(nn.Module):
    """B06, B28: complex and real parameters of several dtypes, which never share a bucket."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.real = nn.Linear(4, 4, dtype=dtype)
        self.wave = nn.Parameter(torch.randn(4, 2).view(2, 4).to(torch.complex64) * (1 + 2j))
        self.coarse = nn.Parameter(torch.randn(4).to(torch.float16))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.real(inputs).float() * self.coarse.float()
        return hidden.to(torch.complex64) @ self.wave.T


class Recomputed(nn.Module):
    """B13: a layer that is used twice and computed again in backward."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(4, 4, dtype=dtype) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layers[0](inputs).tanh()
        for _ in range(2):
            hidden = checkpoint(self.layers[1], hidden, use_reentrant=False)
        return hidden


@pytest.mark.parametrize(("num_ranks", "dtype", "arguments"), KINDS)
@pytest.mark.parametrize("model", [Tied, Mixed, Recomputed])
def test_odd_models_equal_the_reference(
    ranks: Any, model: Any, num_ranks: int, dtype: torch.dtype, arguments: dict[str, Any]
) -> None:
    """B05, B06, B07, B13, B28, also with two micro-steps and with an interleaved ring."""
    importlib.import_module("torch._dynamo")  # checkpoint imports it: once here, not in each rank
    job = Job(lambda: model(dtype), square_loss(4), num_steps=2, arguments=arguments)
    check_against_reference(ranks, num_ranks, job)
    check_against_reference(ranks, num_ranks, replace(job, num_micro_steps=2, set_to_none=False))


@pytest.mark.parametrize(("num_ranks", "dtype", "arguments"), KINDS[:3])
def test_two_forwards_and_one_backward_with_batch_norm(
    ranks: Any, num_ranks: int, dtype: torch.dtype, arguments: dict[str, Any]
) -> None:
    """B08: as a discriminator does. Bytes of one process."""

    def build() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(4, 4, dtype=dtype), nn.BatchNorm1d(4, dtype=dtype))

    def loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
        real, fake = (noise(step, rank, micro, k, shape=(6, 4), dtype=dtype) for k in range(2))
        total: Tensor = module(real).square().sum() + module(fake).relu().sum()
        return total

    job = Job(build, loss, arguments={**arguments, "broadcast_buffers": False})
    check_against_reference(ranks, num_ranks, job)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.complex64])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_buffers_of_every_dtype_come_from_rank_0(
    ranks: Any, num_ranks: int, dtype: torch.dtype
) -> None:
    """B09: empty ones too; at wrap always, and before each training forward."""

    class Buffered(nn.Module):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.register_buffer("state", torch.tensor([rank == 0, rank == 1]).to(dtype))
            self.register_buffer("nothing", torch.empty(0, dtype=dtype))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs)

    def body(rank: int) -> list[list[Any]]:
        found = []
        for broadcast in (False, True):
            module = Buffered(rank)
            wrapped = wrap(module, broadcast_buffers=broadcast)
            found.append(module.state.tolist())
            module.state = torch.tensor([rank == 1, rank == 0]).to(dtype)  # replaced, not written
            wrapped(torch.ones(1, 1)).sum().backward()
            found.append(module.state.tolist())
            wrapped.close()
        return found

    at_wrap, later = ([torch.tensor(pair).to(dtype).tolist()] for pair in ([1, 0], [0, 1]))
    values = ranks.run(num_ranks, body)
    assert [value[0::2] for value in values] == [at_wrap * 2] * num_ranks
    assert [value[3:] for value in values] == [later] * num_ranks
    assert values[1][1] == at_wrap[0], "not broadcast where that is off"
