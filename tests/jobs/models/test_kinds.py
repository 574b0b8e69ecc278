"""What models of every kind have in common: equal starts, all gradients, learning, their sizes."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from jobs.data import Batches, Windows
from jobs.models import MODELS, Model, build_model
from jobs.models.experts import ExpertsModel
from jobs.models.resnet import Resnet
from jobs.modelspec import DeepMlpSpec, MiniMlpSpec, ModelSpec, PacedSpec
from tests.jobs.models.samples import SMALL, random_bytes

TEXT = b"the quick brown fox jumps over the lazy dog. " * 40
EVERY_KIND = pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL)


def test_there_is_a_sample_of_every_kind() -> None:
    assert {name: spec.kind for name, spec in SMALL.items()} == {name: name for name in MODELS}


def loss_of(model: Model, seed: int = 1) -> torch.Tensor:
    context = 9 if isinstance(model.module, Resnet) else 8  # a picture of 3 times 3
    inputs, targets = random_bytes(4, context, seed), random_bytes(4, context, seed + 1)
    losses = [model.loss(model.module(each), targets) for each in every_way(model, inputs)]
    return torch.stack(losses).sum()


def every_way(model: Model, inputs: torch.Tensor) -> Iterator[torch.Tensor]:
    """Nearly the same inputs once for each way through the model."""
    if not isinstance(model.module, ExpertsModel):
        yield inputs
        return
    total = int(inputs.sum() - inputs[0, 0])
    for expert in range(model.module.num_experts):
        inputs = inputs.clone()
        inputs[0, 0] = (expert - total) % model.module.num_experts
        assert model.module.route(inputs) == expert
        yield inputs


def gradients(model: Model, seed: int = 1) -> list[torch.Tensor]:
    model.module.zero_grad()
    loss_of(model, seed).backward()
    return [p.grad.clone() for p in model.module.parameters() if p.grad is not None]


@EVERY_KIND
def test_the_seed_alone_fixes_the_initial_parameters(spec: ModelSpec) -> None:
    torch.manual_seed(99)
    first = build_model(spec, seed=5).module.state_dict()
    torch.manual_seed(7)
    again = build_model(spec, seed=5).module.state_dict()
    other = build_model(spec, seed=6).module.state_dict()
    assert list(first) == list(again) == list(other)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@EVERY_KIND
def test_every_parameter_gets_a_gradient(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0)
    found = gradients(model)
    assert len(found) == len(list(model.module.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in found)


@EVERY_KIND
def test_gradients_differ_from_batch_to_batch(spec: ModelSpec) -> None:
    """Else a rank's or a step's gradient could stand in for another's unnoticed."""
    model = build_model(spec, seed=0)
    first, second = gradients(model, seed=1), gradients(model, seed=10)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@EVERY_KIND
def test_gradients_of_micro_steps_add_up(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0)
    alone = [gradients(model, seed) for seed in (1, 10, 20)]
    model.module.zero_grad()
    for seed in (1, 10, 20):
        loss_of(model, seed).backward()
    for parameter, *parts in zip(model.module.parameters(), *alone, strict=True):
        torch.testing.assert_close(parameter.grad, sum(parts))


@EVERY_KIND
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_brings_the_loss_down(
    spec: ModelSpec, optimizer: type[torch.optim.Optimizer]
) -> None:
    model = build_model(spec, seed=0)
    batches = Batches(Windows(TEXT, spec.context), 4, 0, 1, seed=0)
    lr = 0.1 if optimizer is torch.optim.SGD else 0.003
    used = optimizer(model.module.parameters(), lr=lr)  # type: ignore[call-arg]
    losses = []
    for _ in range(60):
        inputs, targets = batches.next()
        loss = model.loss(model.module(inputs), targets)
        used.zero_grad()
        loss.backward()
        used.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


@EVERY_KIND
def test_layers_that_can_be_paced_are_part_of_the_model(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0)
    inside = list(model.module.modules())
    assert model.paced_layers
    assert all(any(layer is each for each in inside) for layer in model.paced_layers)


def test_without_layers_the_model_is_paced_as_a_whole() -> None:
    module = nn.Linear(2, 2)
    assert list(Model(module).paced_layers) == [module]


def gradient_bytes(spec: ModelSpec) -> int:
    return sum(p.nbytes for p in build_model(spec, seed=0).module.parameters())


@pytest.mark.parametrize(
    ("layers", "layer_bytes"), [(1, 4), (1, 12), (7, 4000), (32, 437_500), (3, 4_000_004)]
)
def test_paced_gradients_have_exactly_the_bytes_asked_for(layers: int, layer_bytes: int) -> None:
    spec = PacedSpec(layers=layers, layer_bytes=layer_bytes)
    assert gradient_bytes(spec) == layers * layer_bytes
    each = [p.nbytes for p in build_model(spec, seed=0).module.parameters()]
    assert each == [layer_bytes] * layers


def test_mlps_have_the_sizes_that_their_widths_give() -> None:
    byte, head = 256 * 64, 64 * 256 + 256
    assert gradient_bytes(MiniMlpSpec(width=64)) == 4 * (byte + 2 * (64 * 64 + 64) + head)
    layer = 2 * 64 + 64 * 64 + 64
    deep = DeepMlpSpec(layers=9, width=64)
    assert gradient_bytes(deep) == 4 * (byte + 9 * layer + 2 * 64 + head)
    assert len(list(build_model(deep, seed=0).module.parameters())) == 1 + 9 * 4 + 2 + 2


@pytest.mark.parametrize("kind", ["mini-mlp", "deep-mlp"])
def test_an_mlp_predicts_each_byte_from_the_one_before_alone(kind: str) -> None:
    model = build_model(SMALL[kind], seed=0).module
    inputs = random_bytes(1, 8)
    changed = inputs.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 256
    before, after = model(inputs), model(changed)
    assert before.shape == (1, 8, 256)
    different = [at for at in range(8) if not torch.equal(before[0, at], after[0, at])]
    assert different == [3]
