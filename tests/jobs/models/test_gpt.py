"""byte-gpt's own mathematics. What all kinds have in common is test_kinds."""

import math

import pytest
import torch
from torch import nn

from jobs.models import build_model, next_byte_loss
from jobs.modelspec import ByteGptSpec
from tests.jobs.models.samples import random_bytes

SMALL = ByteGptSpec(layers=2, width=16, heads=2, context=8)


def gpt(spec: ByteGptSpec = SMALL) -> nn.Module:
    return build_model(spec, seed=0).module


def test_the_catalog_model_is_the_one_that_pages_describe() -> None:
    model = build_model(ByteGptSpec(), seed=0)
    num_parameters = sum(parameter.numel() for parameter in model.module.parameters())
    assert num_parameters == 867_072
    assert sum(parameter.nbytes for parameter in model.module.parameters()) == 3_468_288
    assert len(model.layers) == 4


def test_shapes() -> None:
    inputs = random_bytes(3, 8)
    logits = gpt()(inputs)
    assert logits.shape == (3, 8, 256)
    assert next_byte_loss(logits, inputs).shape == ()


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_byte_changes_no_prediction_before_it(place: int) -> None:
    model = gpt()
    inputs = random_bytes(1, 8)
    changed = inputs.clone()
    changed[0, place] = (changed[0, place] + 1) % 256
    before, after = model(inputs)[0], model(changed)[0]
    assert torch.equal(before[:place], after[:place])
    assert all(not torch.equal(before[at], after[at]) for at in range(place, 8))


def test_an_untrained_model_knows_nothing() -> None:
    inputs = random_bytes(16, 64)
    model = gpt(ByteGptSpec())
    assert next_byte_loss(model(inputs), inputs).item() == pytest.approx(math.log(256), rel=0.05)


def test_the_loss_is_the_mean_over_every_byte() -> None:
    targets = torch.tensor([[1, 2], [3, 4]])
    logits = torch.zeros(2, 2, 256)
    logits[0, 0, 1] = logits[1, 1, 4] = 200.0
    assert next_byte_loss(logits, targets).item() == pytest.approx(math.log(256) / 2)


def test_it_learns_a_text_by_heart() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    text = random_bytes(2, 9)
    for _ in range(60):
        optimizer.zero_grad()
        loss = next_byte_loss(model(text[:, :-1]), text[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5
