"""experts: a byte model with several branches, of which each micro-batch takes one.

Which one is told by its bytes (hash routing: Roller et al., "Hash layers for large sparse models",
2021), so ranks take different ones in the same step, and an expert that none takes has no gradient
anywhere. Shapes: batch = samples of a micro-step, context = bytes of a window, width = numbers per
byte.
"""

from torch import Tensor, nn

from jobs.models.mlp import ResidualLayer
from jobs.models.model import NUM_BYTES, Model
from jobs.modelspec import ExpertsSpec


class Experts(nn.Module):
    """Residual layers side by side; a micro-batch goes through one."""

    def __init__(self, num_experts: int, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(ResidualLayer(width) for _ in range(num_experts))

    def forward(self, hidden: Tensor, expert: int) -> Tensor:
        result: Tensor = self.experts[expert](hidden)  # (batch, context, width)
        return result


class ExpertsModel(nn.Module):
    """Shared layer, one expert, head: (batch, context) bytes -> (batch, context, 256) logits."""

    def __init__(self, num_experts: int, width: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.byte = nn.Embedding(NUM_BYTES, width)
        self.shared = ResidualLayer(width)
        self.routed = Experts(num_experts, width)
        self.head = nn.Linear(width, NUM_BYTES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.shared(self.byte(x))  # (batch, context, width)
        logits: Tensor = self.head(self.routed(hidden, self.route(x)))  # (batch, context, 256)
        return logits

    def route(self, x: Tensor) -> int:
        """The expert of a micro-batch: the sum of its bytes tells."""
        return int(x.sum()) % self.num_experts


def build_experts(spec: ExpertsSpec) -> Model:
    module = ExpertsModel(spec.experts, spec.width)
    return Model(module, layers=(module.shared, module.routed, module.head))
