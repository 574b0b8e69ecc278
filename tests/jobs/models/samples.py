"""A small model of every kind, and bytes to give it."""

from pathlib import Path

import torch

from jobs.modelspec import (
    ByteGptSpec,
    DeepMlpSpec,
    ExpertsSpec,
    MiniMlpSpec,
    ModelSpec,
    OwnSpec,
    PacedSpec,
    ResnetSpec,
)

EXAMPLE = Path(__file__).parents[3] / "docs" / "own_model.py"
SMALL: dict[str, ModelSpec] = {
    "byte-gpt": ByteGptSpec(layers=2, width=16, heads=2, context=8),
    "mini-mlp": MiniMlpSpec(width=16, context=8),
    "deep-mlp": DeepMlpSpec(layers=5, width=16, context=8),
    "resnet": ResnetSpec(layers=1, width=8, side=3),
    "experts": ExpertsSpec(experts=3, width=16, context=8),
    "paced": PacedSpec(layers=3, layer_bytes=4000, layer_forward_ms=0, layer_backward_ms=0),
    "import": OwnSpec(import_=f"{EXAMPLE}:build", context=8, settings={"width": 16}),
}


def random_bytes(batch: int, context: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, context), generator=generator)
