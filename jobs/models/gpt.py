"""byte-gpt: a standard pre-norm GPT over bytes.

Shapes: batch = samples of a micro-step, context = bytes of a window, width = numbers per byte.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from jobs.models.model import NUM_BYTES, Model
from jobs.modelspec import ByteGptSpec

INITIAL_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        parts = self.query_key_value(x).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(
            2, 0, 3, 1, 4
        )  # each (batch, heads, context, width/heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined = mixed.transpose(1, 2).reshape(batch, context, width)
        result: Tensor = self.output(joined)
        return result


class Block(nn.Module):
    """One pre-norm transformer block (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class ByteGpt(nn.Module):
    """A GPT that predicts the next byte: (batch, context) bytes -> (batch, context, 256) logits."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(NUM_BYTES, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_BYTES, bias=False)
        self._initialise(layers)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.byte(x) + self.position(places)  # (batch, context, width)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))  # (batch, context, 256)
        return logits

    def _initialise(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                continue  # biases and norms keep torch's own start
            residual = name.endswith(("attention.output.weight", "mlp.2.weight"))
            # each block adds twice to the residual stream, whose variance must not grow
            std = INITIAL_STD / (2 * layers) ** 0.5 if residual else INITIAL_STD
            nn.init.normal_(parameter, std=std)


def build_byte_gpt(spec: ByteGptSpec) -> Model:
    module = ByteGpt(spec.layers, spec.width, spec.heads, spec.context)
    return Model(module, layers=tuple(module.blocks))
