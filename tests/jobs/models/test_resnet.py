"""resnet: a window as a picture, the byte that is predicted, and what its batch norms keep."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from jobs.models import build_model
from jobs.models.resnet import last_byte_loss
from jobs.modelspec import ResnetSpec
from tests.jobs.models.samples import random_bytes

SPEC = ResnetSpec(layers=2, width=4, side=3)


def test_a_window_is_as_long_as_the_picture() -> None:
    assert (SPEC.context, ResnetSpec(side=16).context) == (9, 256)
    with pytest.raises(RuntimeError, match="invalid for input of size 16"):
        build_model(SPEC, seed=0).module(random_bytes(2, 8))


def test_the_byte_after_the_last_is_what_is_predicted() -> None:
    logits = torch.randn(2, 256)
    targets = torch.tensor([[1, 2, 30], [4, 5, 60]])
    expected = functional.cross_entropy(logits, torch.tensor([30, 60]))
    assert last_byte_loss(logits, targets) == expected
    uniform = last_byte_loss(torch.zeros(2, 256), targets)
    assert uniform.item() == pytest.approx(math.log(256))


def test_every_convolution_has_a_batch_norm_that_counts_batches() -> None:
    module = build_model(SPEC, seed=0).module
    norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
    assert len(norms) == 1 + 2 * 2
    for _ in range(3):
        module(random_bytes(2, 9))
    assert [int(norm.num_batches_tracked or 0) for norm in norms] == [3] * 5
    assert all(norm.running_mean is not None and norm.running_mean.any() for norm in norms)


def test_a_picture_has_rows_of_bytes() -> None:
    """A byte reaches its neighbours in the row above and below, not the one a row away in text."""
    module = build_model(ResnetSpec(layers=1, width=4, side=9), seed=0).module.eval()
    seen = []
    stem = module.stem
    stem.register_forward_hook(lambda _stem, _inputs, output: seen.append(output))
    inputs = random_bytes(1, 81)
    changed = inputs.clone()
    changed[0, 4 * 9 + 4] = (changed[0, 4 * 9 + 4] + 128) % 256
    module(inputs), module(changed)
    places = (seen[0] != seen[1]).any(1)[0].nonzero().tolist()
    assert places == [[row, column] for row in (3, 4, 5) for column in (3, 4, 5)]
