"""mini-mlp and deep-mlp: multi-layer perceptrons that predict each byte from the one before it.

mini-mlp is small enough for one bucket; deep-mlp has many small parameters, each of which would
pay for a reduction of its own.
Shapes: batch = samples of a micro-step, context = bytes of a window, width = numbers per byte.
"""

from torch import Tensor, nn

from jobs.models.model import NUM_BYTES, Model
from jobs.modelspec import DeepMlpSpec, MiniMlpSpec


class MiniMlp(nn.Module):
    """Three linear layers: (batch, context) bytes -> (batch, context, 256) logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(NUM_BYTES, width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, NUM_BYTES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.byte(x)).relu()  # (batch, context, width)
        logits: Tensor = self.third(self.second(hidden).relu())  # (batch, context, 256)
        return logits


class ResidualLayer(nn.Module):
    """A linear layer that adds to what it was given, so that a deep stack of them learns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.linear(self.norm(x)).relu()
        return result


class DeepMlp(nn.Module):
    """Residual layers: (batch, context) bytes -> (batch, context, 256) logits."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(NUM_BYTES, width)
        self.hidden = nn.ModuleList(ResidualLayer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_BYTES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.byte(x)  # (batch, context, width)
        for layer in self.hidden:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden))  # (batch, context, 256)
        return logits


def build_mini_mlp(spec: MiniMlpSpec) -> Model:
    module = MiniMlp(spec.width)
    return Model(module, layers=(module.first, module.second, module.third))


def build_deep_mlp(spec: DeepMlpSpec) -> Model:
    module = DeepMlp(spec.layers, spec.width)
    return Model(module, layers=tuple(module.hidden))
