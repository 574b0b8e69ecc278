"""Our algorithms as hooks of torch's own class: bytes against the reference, by the plan made."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.hooks import HookState, reduce_hook
from ddp.plan import ReductionPlan
from tests.ddp.oracle import Job, Trained, bytes_of, noise, note, train_reference
from tests.ddp.samples import integers, linear, message, the_one_text, wrap

CASES: list[tuple[int, str, dict[str, Any], torch.dtype]] = [
    (2, "ring", {}, torch.float32),
    (3, "hierarchical", {"fabric": Fabric((0, 1, 0)), "segments": 3}, torch.float64),
    (3, "ring", {"ring_order": "interleaved", "fabric": Fabric((0, 0, 1))}, torch.bfloat16),
]


def build(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(2)
    layers = [nn.Linear(5, 7, dtype=dtype), nn.Tanh(), nn.Linear(7, 3, dtype=dtype)]
    return nn.Sequential(*layers)


def loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    inputs = noise(step, rank, micro, shape=(4, 5), dtype=next(module.parameters()).dtype)
    result: Tensor = module(inputs).square().sum()
    return result


@pytest.mark.parametrize(("num_ranks", "algorithm", "arguments", "dtype"), CASES)
def test_torchs_class_with_our_hook_equals_the_reference(
    ranks: Any, num_ranks: int, algorithm: str, arguments: dict[str, Any], dtype: torch.dtype
) -> None:
    """After every step, also after torch has made its buckets again."""
    importlib.import_module("torch._dynamo")  # torch's class imports it: once, not in each rank
    job = Job(lambda: build(dtype), loss)

    def body(rank: int) -> Trained:
        module = build(dtype)
        wrapped = TorchDDP(module, bucket_cap_mb=5e-5)
        state = HookState(algorithm, **arguments)
        wrapped.register_comm_hook(state, reduce_hook)
        trained = Trained([], [], [], [])
        for step in range(job.num_steps):
            wrapped.zero_grad()
            loss(wrapped, step, rank, 0).backward()
            note(module, trained)
            trained.buffers.append(bytes_of(module.buffers()))
            trained.plans.append(state.plan(module).to_json())
        state.close()
        return trained

    values = ranks.run(num_ranks, body)
    assert len(ReductionPlan.from_json(values[0].plans[-1]).buckets) > 1
    assert values == train_reference(job, values[0].plans)


@pytest.mark.parametrize("algorithm", ["native", "noop"])
def test_the_algorithms_without_a_schedule(ranks: Any, algorithm: str) -> None:
    importlib.import_module("torch._dynamo")

    def body(rank: int) -> list[float]:
        module = linear(0)
        wrapped = TorchDDP(module)
        wrapped.register_comm_hook(HookState(algorithm), reduce_hook)
        wrapped(integers(rank, 1, 3)).sum().backward()
        assert module.weight.grad is not None
        return module.weight.grad[0].tolist()

    local = [integers(rank, 1, 3)[0] for rank in range(2)]
    mean = ((local[0] + local[1]) / 2).tolist()
    wanted = [mean, mean] if algorithm == "native" else [each.tolist() for each in local]
    assert ranks.run(2, body) == wanted
    assert local[0].tolist() != local[1].tolist()


def test_a_rank_that_stops_gives_all_the_reason(ranks: Any) -> None:
    importlib.import_module("torch._dynamo")

    def body(rank: int) -> str:
        wrapped = TorchDDP(linear(0))
        state = HookState("ring", timeout_s=20)
        wrapped.register_comm_hook(state, reduce_hook)
        wrapped(integers(rank, 1, 3)).sum().backward()
        if rank == 1:
            state.close()
        try:
            wrapped(integers(rank, 1, 3)).sum().backward()
        except RuntimeError as exc:
            raise SystemExit(str(exc)) from exc
        return "nothing was raised"

    first, second = (outcome.message for outcome in ranks.outcomes(2, body))
    assert "bucket 0, stage 0" in first and "rank 1 failed" in first
    assert "cannot be used again: it was closed" in second


def test_arguments_are_compared(ranks: Any) -> None:
    def body(rank: int) -> list[str]:
        return [
            message(lambda: HookState("ring" if rank else "hierarchical")),
            message(lambda: HookState("rign")),
            message(lambda: HookState("ring", fabric=Fabric((0, 1, 1)))),
        ]

    for texts, words in zip(
        zip(*ranks.run(2, body), strict=True),
        ("rank 1 asks for algorithm='ring'", "did you mean 'ring'", "3 ranks for a group of 2"),
        strict=True,
    ):
        text = the_one_text(list(texts))
        assert text.startswith(UsageError.__name__) and words in text


def test_our_hook_on_our_wrapper_and_its_plan(ranks: Any) -> None:
    """The same sums as without a hook; before the first step there is no plan to give."""

    def body(rank: int) -> tuple[str, list[Any], list[Any], int]:
        found = []
        state = HookState("hierarchical")
        early = message(lambda: state.plan(nn.Linear(1, 1)))
        for hooked in (True, False):
            wrapped = wrap(linear(rank), algorithm="hierarchical")
            if hooked:
                wrapped.register_comm_hook(state, reduce_hook)
            wrapped(integers(rank, 4, 3)).sum().backward()
            found.append([p.grad.tolist() for p in wrapped.parameters()])
            if hooked:
                num_buckets = len(state.plan(wrapped.module).buckets)
        return early, found[0], found[1], num_buckets

    for early, hooked, plain, num_buckets in ranks.run(3, body):
        assert early.startswith("PlanError: no bucket was reduced yet")
        assert hooked == plain
        assert num_buckets == 2
