"""The reference where ranks have something of their own: random numbers, buffers, branches."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.algorithms import ALGORITHMS
from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.plan import BucketLayout, ReductionPlan
from ddp.reference import Reference
from tests.ddp.oracle import Job, check_against_reference, noise
from tests.ddp.samples import message

WIDTH = 6


class Own(nn.Module):
    """Every forward draws from both generators, and reads and writes buffers that gradients see."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.last = nn.Linear(WIDTH, 2)  # used in another order than registered in
        self.twig = nn.Linear(WIDTH, WIDTH)
        self.first = nn.Linear(4, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.4)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, inputs: Tensor, *, whole: bool = True) -> Tensor:
        hidden = self.dropout(self.norm(self.first(inputs))) * (1 + random.random())
        seen = self.get_buffer("seen")
        seen.mul_(0.5).add_(hidden.detach().mean(0))
        hidden = hidden * (1 + seen.clone())
        result: Tensor = self.last(hidden + self.twig(hidden) if whole else hidden)
        return result


def own_loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    result: Tensor = module(noise(step, rank, micro, shape=(5, 4))).square().mean()
    return result


def branched_loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    """`twig` on some ranks, on all, and on none."""
    inputs = noise(step, rank, micro, shape=(5, 4))
    result: Tensor = module(inputs, whole=rank >= step).square().mean()
    return result


def uneven_loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    """`twig` on one rank only, in every step."""
    inputs = noise(step, rank, micro, shape=(5, 4))
    result: Tensor = module(inputs, whole=rank == 1).square().mean()
    return result


def own_job(**arguments: Any) -> Job:
    packed = {"per_parameter": False, "bucket_cap_mb": 1e-4, "segments": 2}
    return Job(Own, own_loss, arguments={**packed, **arguments})


FABRICS = (Fabric((0, 1)), Fabric((0, 1, 0)))


def _reducible() -> Iterator[tuple[str, Fabric]]:
    """Each algorithm that can be replayed, on the fabrics that it takes."""
    for name, algorithm in ALGORITHMS.items():
        for fabric in FABRICS if algorithm.build else ():
            try:
                algorithm.build(fabric, "contiguous", 0)  # type: ignore[misc]
            except UsageError:
                continue
            yield name, fabric


@pytest.mark.parametrize("num_micro_steps", [1, 3])
@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize(("algorithm", "fabric"), list(_reducible()))
def test_own_numbers_and_buffers_equal_the_reference(
    ranks: Any, algorithm: str, fabric: Fabric, broadcast: bool, num_micro_steps: int
) -> None:
    """Every algorithm with a schedule; buckets are made again after the first step."""
    job = Job(
        Own,
        own_loss,
        num_micro_steps=num_micro_steps,
        arguments={
            **own_job().arguments,
            "algorithm": algorithm,
            "fabric": fabric,
            "broadcast_buffers": broadcast,
        },
    )
    trained = check_against_reference(ranks, fabric.num_ranks, job)
    first, second, *_ = trained[0].plans
    assert first != second
    assert trained[0].buffers[-1] != trained[1].buffers[-1], "each has its own within a step"


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize(
    ("loss", "arguments"),
    [
        (branched_loss, {"find_unused_parameters": True}),
        (uneven_loss, {"static_graph": True}),
        (own_loss, {"overlap": False, "gradient_as_bucket_view": False}),
    ],
)
def test_branches_and_modes_equal_the_reference(
    ranks: Any, loss: Any, arguments: dict[str, Any], num_ranks: int, broadcast: bool
) -> None:
    more = own_job(**arguments, broadcast_buffers=broadcast).arguments
    job = Job(Own, loss, num_steps=4, num_micro_steps=2, set_to_none=False, arguments=more)
    check_against_reference(ranks, num_ranks, job)


def plan_of(module: nn.Module, num_ranks: int) -> ReductionPlan:
    named = list(module.named_parameters())
    names, numels = tuple(n for n, _ in named), tuple(p.numel() for _, p in named)
    bucket = BucketLayout("float32", names, numels, 1)
    return ReductionPlan("ring", "contiguous", 0, (0,) * num_ranks, (bucket,))


def own_reference(num_ranks: int = 2, **arguments: Any) -> Reference:
    module = Own()
    return Reference(module, plan_of(module, num_ranks), **arguments)


def test_each_rank_draws_from_its_own_generators_and_the_caller_keeps_his() -> None:
    reference = own_reference()
    drawn: list[list[tuple[float, float]]] = [[], []]
    for rank in range(2):
        with reference.as_rank(rank):
            torch.manual_seed(rank)
            random.seed(rank)
    torch.manual_seed(9)
    random.seed(9)

    def run_rank(rank: int) -> None:
        drawn[rank].append((float(torch.rand(())), random.random()))

    for _ in range(2):
        reference.backward(run_rank)
    here = float(torch.rand(())), random.random()
    wanted = []
    for seed in (0, 1, 9):
        torch.manual_seed(seed)
        random.seed(seed)
        wanted.append([(float(torch.rand(())), random.random()) for _ in range(2)])
    assert drawn == wanted[:2]
    assert here == wanted[2][0]


def watched(reference: Reference) -> list[float]:
    """What the buffer `seen` holds at the start of each forward to come."""
    found: list[float] = []
    reference.module.register_forward_pre_hook(
        lambda module, _: found.append(float(module.get_buffer("seen")[0]))
    )
    return found


def test_a_caller_may_change_the_buffers_between_backwards() -> None:
    """As load_state_dict does on every rank: here on rank 0, whose buffers are then sent."""
    reference = own_reference()
    found = watched(reference)
    reference.module.get_buffer("seen").fill_(7)
    reference.backward(lambda rank: own_loss(reference, 0, rank, 0).backward())
    assert found == [7.0, 7.0]


@pytest.mark.parametrize("num_forwards", [1, 3])
def test_a_rank_that_makes_other_forwards_than_rank_0_is_named(num_forwards: int) -> None:
    reference = own_reference()

    def run_rank(rank: int) -> None:
        for micro in range(num_forwards if rank else 2):
            own_loss(reference, 0, rank, micro).backward()

    text = message(lambda: reference.backward(run_rank))
    words = "1" if num_forwards == 1 else "more than 2"
    assert text.startswith(f"UsageError: rank 1 makes {words} training forwards and rank 0 2")


def test_other_forwards_see_each_ranks_own_buffers() -> None:
    """In eval, without gradients, and inside no_sync; they count as no training forward."""
    reference = own_reference()
    found = watched(reference)

    def run_rank(rank: int) -> None:
        seen = reference.module.get_buffer("seen")
        for forward in (evaluate, without_gradients, inside_no_sync)[: 3 - rank]:
            seen.fill_(rank + 3)
            forward(reference)
        own_loss(reference, 0, rank, 0).backward()

    reference.backward(run_rank)
    assert found[:3] + found[4:6] == [3.0, 3.0, 3.0, 4.0, 4.0]
    assert found[3] == found[6], "of rank 0"


def evaluate(reference: Reference) -> None:
    reference.eval()
    reference(torch.ones(2, 4))
    reference.train()


def without_gradients(reference: Reference) -> None:
    with torch.no_grad():
        reference(torch.ones(2, 4))


def inside_no_sync(reference: Reference) -> None:
    with reference.no_sync():
        reference(torch.ones(2, 4))


def test_one_large_batch_gives_the_same_within_float_tolerance() -> None:
    """All ranks' samples at once, in plain torch: another order of sums, and nothing else."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2))
    reference = Reference(module, plan_of(module, 3))
    batches = [noise(rank, shape=(5, 4)) for rank in range(3)]
    reference.backward(lambda rank: reference(batches[rank]).square().mean().backward())
    found = [
        parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None
    ]
    module.zero_grad()
    module(torch.cat(batches)).square().mean().backward()
    for one, parameter in zip(found, module.parameters(), strict=True):
        assert torch.allclose(one, parameter.grad, rtol=1e-5, atol=1e-7)  # type: ignore[arg-type]
