"""experts: which branch a micro-batch takes, and that the others have no gradient."""

import torch
from torch import Tensor

from jobs.models import build_model
from jobs.models.experts import ExpertsModel
from jobs.modelspec import ExpertsSpec
from jobs.spec import load_job
from tests.jobs.models.samples import random_bytes


def module_of(experts: int) -> ExpertsModel:
    module = build_model(ExpertsSpec(experts=experts, width=8, context=4), seed=1).module
    assert isinstance(module, ExpertsModel)
    return module


def batch_with_sum(total: int) -> Tensor:
    return torch.tensor([[total, 0, 0, 0], [0, 0, 0, 0]])


def without_gradient(module: ExpertsModel) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.grad is None}


def test_one_expert_is_used_and_the_others_have_no_gradient() -> None:
    for total, used in ((7, 1), (9, 0), (11, 2)):
        module = module_of(3)
        module(batch_with_sum(total)).sum().backward()
        parts = ("norm.weight", "norm.bias", "linear.weight", "linear.bias")
        unused = [expert for expert in range(3) if expert != used]
        expected = {f"routed.experts.{each}.{part}" for each in unused for part in parts}
        assert without_gradient(module) == expected


def test_the_whole_batch_goes_through_the_expert_of_its_bytes() -> None:
    module, inputs = module_of(2), batch_with_sum(5)
    hidden = module.shared(module.byte(inputs))
    expected = module.head(module.routed.experts[1](hidden))
    assert torch.equal(module(inputs), expected)
    other = module.head(module.routed.experts[0](hidden))
    assert not torch.equal(module(inputs), other)


def test_batches_spread_over_all_experts() -> None:
    module = module_of(4)
    taken = [module.route(random_bytes(8, 64, seed)) for seed in range(200)]
    assert all(30 <= taken.count(expert) <= 70 for expert in range(4))


def test_the_lessons_job_has_experts_that_are_not_taken() -> None:
    for name, flagged in (("unused", False), ("unused-flagged", True)):
        job = load_job(name)
        assert isinstance(job.model, ExpertsSpec)
        assert job.model.experts > 1
        assert job.ddp.find_unused_parameters is flagged
