"""paced: layers of stated gradient bytes and stated times, for what is too large to be run here.

The times are slept by `jobs.pace`, layer by layer; what little is computed fits into them. The
gradients are real: each layer holds one vector, and what the model predicts, from the lengths of
all of them, is the mean of the bytes it is given. So gradients differ from rank to rank and from
step to step, and training brings the loss down.
Shapes: batch = samples of a micro-step, context = bytes of a window, n = numbers of a layer.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from jobs.models.model import NUM_BYTES, Model
from jobs.modelspec import FLOAT_BYTES, PacedSpec

INITIAL_STD = 0.02


class AddLength(torch.autograd.Function):
    """x + the length of `vector`; torch's own backward of it takes several times as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, vector: Tensor) -> Tensor:
        length = vector.norm()
        ctx.save_for_backward(vector, length)
        result: Tensor = x + length
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        vector, length = ctx.saved_tensors
        return gradient, vector * (gradient / length)  # (n,)


class PacedLayer(nn.Module):
    """Adds the length of its vector."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(num_bytes // FLOAT_BYTES) * INITIAL_STD)  # (n,)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = AddLength.apply(x, self.vector)  # type: ignore[no-untyped-call]
        return result


class PacedModel(nn.Module):
    """(batch, context) bytes -> how far the prediction is from what they say: one number."""

    def __init__(self, layers: int, layer_bytes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PacedLayer(layer_bytes) for _ in range(layers))
        # so that a step of sgd takes lr of the distance away, however many layers there are
        self._scale = layers**-0.5
        self._initial = INITIAL_STD * (layers * layer_bytes / FLOAT_BYTES) ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros((), device=x.device, requires_grad=torch.is_grad_enabled())
        for layer in self.layers:
            total = layer(total)
        expected = x.float().mean() / NUM_BYTES * self._initial
        distance: Tensor = total * self._scale - expected
        return distance


def squared_distance(distance: Tensor, _targets: Tensor) -> Tensor:
    """Half its square, so that the gradient is the distance itself."""
    return distance.square() / 2


def build_paced(spec: PacedSpec) -> Model:
    module = PacedModel(spec.layers, spec.layer_bytes)
    return Model(module, tuple(module.layers), squared_distance)
