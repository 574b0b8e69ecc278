"""A model of which each rank uses other layers in each step."""

import torch
from torch import Tensor, nn

from tests.ddp.oracle import noise

# which layers each rank uses, by step; "middle" is never used, and "last" always
USES = [
    ["left last", "right last", "left last"],  # some ranks each
    ["last", "last", "last"],  # no rank uses left or right
    ["left right last", "last", "right last"],
    ["left right last", "left right last", "left right last"],
]


class Routed(nn.Module):
    """Layers of which a caller chooses some."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name in ("last", "right", "middle", "left"):
            self.add_module(name, nn.Linear(4, 4, dtype=dtype))

    def forward(self, inputs: Tensor, used: str) -> Tensor:
        hidden = inputs
        for name in used.split():
            hidden = getattr(self, name)(hidden)
        return hidden


def routed(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    return Routed(dtype)


def routed_loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    dtype = next(module.parameters()).dtype
    inputs = noise(step, rank, micro, shape=(3, 4), dtype=dtype)
    result: Tensor = module(inputs, USES[(step + micro) % 4][rank]).square().sum()
    return result
