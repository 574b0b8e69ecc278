"""paced: its gradients are those that autograd would give, and what training does with them."""

import pytest
import torch

from jobs.models import build_model
from jobs.models.paced import INITIAL_STD, PacedModel
from jobs.modelspec import PacedSpec
from tests.jobs.models.samples import random_bytes


def model_of(layers: int, numbers: int) -> PacedModel:
    module = build_model(PacedSpec(layers=layers, layer_bytes=4 * numbers), seed=3).module
    assert isinstance(module, PacedModel)
    return module


@pytest.mark.parametrize(("layers", "numbers"), [(1, 5), (4, 1000)])
def test_gradients_are_those_of_the_formula(layers: int, numbers: int) -> None:
    module = model_of(layers, numbers)
    inputs = random_bytes(2, 64)
    vectors = [p.detach().clone().requires_grad_() for p in module.parameters()]
    initial = INITIAL_STD * (layers * numbers) ** 0.5
    lengths = torch.stack([vector.norm() for vector in vectors])
    distance = lengths.sum() / layers**0.5 - inputs.float().mean() / 256 * initial
    (distance.square() / 2).backward()
    (module(inputs).square() / 2).backward()
    for parameter, vector in zip(module.parameters(), vectors, strict=True):
        torch.testing.assert_close(parameter.grad, vector.grad)
        assert torch.unique(parameter.grad).numel() > 0.99 * numbers  # hardly two are alike


def test_a_step_of_sgd_takes_its_share_of_the_distance_away() -> None:
    module, inputs = model_of(5, 200), random_bytes(2, 64)
    before = module(inputs)
    (before.square() / 2).backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert module(inputs).item() == pytest.approx(0.9 * before.item(), rel=1e-4)


def test_a_gradient_that_is_kept_is_not_written_over() -> None:
    module = model_of(2, 50)
    module(random_bytes(2, 64)).backward()
    kept = [p.grad for p in module.parameters()]
    expected = [gradient.clone() for gradient in kept if gradient is not None]
    module(random_bytes(2, 64)).backward()
    for parameter, gradient, once in zip(module.parameters(), kept, expected, strict=True):
        assert parameter.grad is gradient
        torch.testing.assert_close(gradient, 2 * once)


def test_without_gradients_there_are_none() -> None:
    with torch.no_grad():
        assert not model_of(2, 50)(random_bytes(2, 64)).requires_grad
