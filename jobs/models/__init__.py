"""Models that a job can train: one file and one line of MODELS for each kind.

Owns which kinds there are, and that equal seeds give equal initial parameters. Knows nothing of
ranks, time or data.
"""

import random
from collections.abc import Callable
from typing import Any

import torch

from jobs.models.experts import build_experts
from jobs.models.gpt import build_byte_gpt
from jobs.models.mlp import build_deep_mlp, build_mini_mlp
from jobs.models.model import Model, next_byte_loss
from jobs.models.own import build_own
from jobs.models.paced import build_paced
from jobs.models.resnet import build_resnet
from jobs.modelspec import ModelSpec

__all__ = ["MODELS", "Model", "build_model", "next_byte_loss"]

MODELS: dict[str, Callable[[Any], Model]] = {
    "byte-gpt": build_byte_gpt,
    "mini-mlp": build_mini_mlp,
    "deep-mlp": build_deep_mlp,
    "resnet": build_resnet,
    "experts": build_experts,
    "paced": build_paced,
    "import": build_own,
}


def build_model(spec: ModelSpec, seed: int) -> Model:
    """The model with the initial parameters that `seed` gives, the same on every rank."""
    torch.manual_seed(seed)
    random.seed(seed)  # for a model of one's own that draws from it
    return MODELS[spec.kind](spec)
