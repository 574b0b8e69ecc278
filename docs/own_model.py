"""An example of a model of one's own: `make run JOB=docs/own_model.yaml`.

`build` is called once on every rank, with model.context and what stands below model.settings. It
may return a plain torch module that predicts the next byte; this one also names the layers that
pace can slow down, and brings a loss of its own. jobs/models/own.py says all there is to know.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from jobs.models import Model

VOWELS = torch.tensor(list(b"aeiouAEIOU"))


class VowelFinder(nn.Module):
    """Reads a text from left to right and guesses after each byte whether a vowel follows."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, width)
        self.layers = nn.ModuleList(
            nn.GRU(width, width, batch_first=True) for _ in range(num_layers)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.byte(x)  # (batch, context, width)
        for layer in self.layers:
            hidden, _ = layer(hidden)
        return self.head(hidden).squeeze(-1)  # (batch, context)


def vowel_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """`targets` are the bytes that follow, (batch, context)."""
    return functional.binary_cross_entropy_with_logits(outputs, torch.isin(targets, VOWELS).float())


def build(context: int, width: int = 64, num_layers: int = 2) -> Model:
    del context  # this model takes windows of any length
    module = VowelFinder(width, num_layers)
    return Model(module, layers=list(module.layers), loss=vowel_loss)
