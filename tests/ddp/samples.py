"""For the tests of several files: inputs, different on each rank and place; models and calls."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddp.errors import DdpError
from ddp.parallel import DistributedDataParallel

TIMEOUT_S = 5.0


def integers(rank: int, *shape: int) -> Tensor:
    """Small whole numbers, different on each rank and at each place."""
    numel = int(torch.tensor(shape).prod())
    return ((torch.arange(numel) * (rank + 2)) % 7 - 3).to(torch.float32).view(shape)


def linear(rank: int, inputs: int = 3, outputs: int = 2) -> nn.Linear:
    """A linear layer whose values differ by rank until they are broadcast."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(integers(rank, outputs, inputs))
        layer.bias.zero_()
    return layer


def local_gradients(module: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Of a copy, so that the module is left alone."""
    twin = copy.deepcopy(module)
    for parameter in twin.parameters():
        parameter.grad = None
    twin(inputs).sum().backward()
    return [p.grad for p in twin.parameters() if p.grad is not None]


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def as_lists(tensors: list[Tensor]) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


def random_buffers(num_ranks: int, numel: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(numel + 1)
    return [torch.randn(numel, generator=generator) for _ in range(num_ranks)]


class Branches(nn.Module):
    """Two layers; which of them are used is up to the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, inputs: Tensor, used: str = "left right") -> Tensor:
        hidden = inputs
        for name in used.split():
            hidden = getattr(self, name)(hidden)
        return hidden


def wrap(module: nn.Module, **arguments: Any) -> DistributedDataParallel:
    arguments = {"algorithm": "ring", "per_parameter": True, "timeout_s": TIMEOUT_S, **arguments}
    return DistributedDataParallel(module, **arguments)


def message(call: Callable[[], Any]) -> str:
    """The text of the error that `call` must raise, with its class."""
    try:
        call()
    except DdpError as exc:
        return f"{type(exc).__name__}: {exc}"
    return "nothing was raised"


def train(wrapped: DistributedDataParallel, *arguments: Any) -> None:
    wrapped(torch.ones(2, 4), *arguments).sum().backward()


def the_one_text(texts: list[str]) -> str:
    assert len(set(texts)) == 1, texts
    return texts[0]
