import math
from collections.abc import Iterator

import pytest
import torch

from jobs.models import build_model, next_byte_loss
from jobs.spec import ModelSpec

SMALL = ModelSpec(layers=2, width=16, heads=2, context=8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_bytes(batch: int, context: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (batch, context), generator=generator)


def test_the_catalog_model_is_the_one_that_pages_describe() -> None:
    spec = ModelSpec()
    model = build_model(spec, seed=0)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert num_parameters == 867_072
    assert sum(parameter.nbytes for parameter in model.parameters()) == 3_468_288
    assert len(model.layers) == 4


def test_shapes() -> None:
    inputs = random_bytes(3, 8)
    logits = build_model(SMALL, seed=0)(inputs)
    assert logits.shape == (3, 8, 256)
    assert next_byte_loss(logits, inputs).shape == ()


def test_the_seed_alone_fixes_the_initial_parameters() -> None:
    torch.manual_seed(99)
    first = build_model(SMALL, seed=5).state_dict()
    torch.manual_seed(7)
    again = build_model(SMALL, seed=5).state_dict()
    other = build_model(SMALL, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_byte_changes_no_prediction_before_it(place: int) -> None:
    model = build_model(SMALL, seed=0)
    inputs = random_bytes(1, 8)
    changed = inputs.clone()
    changed[0, place] = (changed[0, place] + 1) % 256
    before, after = model(inputs)[0], model(changed)[0]
    assert torch.equal(before[:place], after[:place])
    assert all(not torch.equal(before[at], after[at]) for at in range(place, 8))


def test_an_untrained_model_knows_nothing() -> None:
    inputs = random_bytes(16, 64)
    model = build_model(ModelSpec(), seed=0)
    assert next_byte_loss(model(inputs), inputs).item() == pytest.approx(math.log(256), rel=0.05)


def test_the_loss_is_the_mean_over_every_byte() -> None:
    targets = torch.tensor([[1, 2], [3, 4]])
    logits = torch.zeros(2, 2, 256)
    logits[0, 0, 1] = logits[1, 1, 4] = 200.0
    assert next_byte_loss(logits, targets).item() == pytest.approx(math.log(256) / 2)


def test_every_parameter_gets_a_gradient() -> None:
    model = build_model(SMALL, seed=0)
    inputs = random_bytes(4, 8)
    next_byte_loss(model(inputs), inputs).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_it_learns_a_text_by_heart() -> None:
    model = build_model(SMALL, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    text = random_bytes(2, 9)
    for _ in range(60):
        optimizer.zero_grad()
        loss = next_byte_loss(model(text[:, :-1]), text[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5
