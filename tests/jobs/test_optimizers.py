"""Our optimizers are torch's: the same numbers, without torch's compiler in memory."""

import copy
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from jobs.optimizers import OPTIMIZERS, build_optimizer
from jobs.spec import TrainSpec

THEIRS: dict[str, Callable[..., Optimizer]] = {"adamw": AdamW, "sgd": SGD}
NO_COMPILER = """
import sys
import torch
import torch.distributed
from jobs.optimizers import build_optimizer
from jobs.spec import TrainSpec

model = torch.nn.Linear(2, 1)
for name in ("adamw", "sgd"):
    optimizer = build_optimizer(TrainSpec(optimizer=name), model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def _train(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    for _ in range(5):
        model(torch.randn(3, 4, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_it_takes_the_steps_that_torchs_own_takes(name: str) -> None:
    model, same = _model(), _model()
    ours = _train(model, build_optimizer(TrainSpec(optimizer=name, lr=0.1), model))
    options = {"fused": True} if name == "adamw" else {}
    theirs = _train(same, THEIRS[name](same.parameters(), lr=0.1, **options))
    for own, other in zip(ours, theirs, strict=True):
        assert own.equal(other)
    for own, before in zip(ours, _model().parameters(), strict=True):
        assert not own.equal(before)


def test_a_step_records_no_graph() -> None:
    model = _model()
    optimizer = build_optimizer(TrainSpec(optimizer="adamw"), model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


def test_state_goes_out_and_in_again() -> None:
    model, same = _model(), _model()
    first, second = (build_optimizer(TrainSpec(optimizer="adamw"), it) for it in (model, same))
    _train(model, first)
    same.load_state_dict(model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for own, other in zip(_train(model, first), _train(same, second), strict=True):
        assert own.equal(other)


def test_torchs_compiler_is_never_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", NO_COMPILER], check=False, timeout=60)
    assert done.returncode == 0
