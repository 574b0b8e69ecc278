"""Training on many ranks gives the bytes of one process that trains on all their data in turn."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.errors import PlanError
from ddp.fabric import Fabric
from ddp.parallel import DistributedDataParallel
from ddp.plan import ReductionPlan
from ddp.reference import Reference

CASES = [
    ("ring", "contiguous", (0, 0, 1, 1)),
    ("ring", "interleaved", (0, 0, 1, 1)),
    ("ring", "shuffled", (0, 1, 0, 1)),
    ("hierarchical", "contiguous", (0, 0, 1, 1)),
    ("hierarchical", "contiguous", (1, 0, 0, 0)),
    ("parameter_server", "contiguous", (1, 0, 1, 0)),
]
NUM_STEPS = 4


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(5, 31), nn.BatchNorm1d(31), nn.GELU(), nn.Linear(31, 17), nn.Linear(17, 3)
    )


def data(step: int, rank: int, micro_step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000 * step + 10 * rank + micro_step)
    return torch.randn(6, 5, generator=generator)


def loss(module: nn.Module, batch: Tensor) -> Tensor:
    result: Tensor = module(batch).square().mean()
    return result


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def snapshot(module: nn.Module) -> list[bytes]:
    tensors = [*module.parameters(), *module.buffers()]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def train_here(rank: int, algorithm: str, order: str, node_of: tuple[int, ...]) -> Any:
    module = build()
    wrapped = DistributedDataParallel(
        module,
        algorithm=algorithm,
        ring_order=order,
        ring_seed=5 if order == "shuffled" else 0,
        fabric=Fabric(node_of),
        bucket_cap_mb=0.002,
        segments=3,
    )
    assert len(wrapped.plan.buckets) > 1
    updates = optimizer(module)
    snapshots = []
    for step in range(NUM_STEPS):
        updates.zero_grad(set_to_none=step % 2 == 0)
        if step == 2:
            with wrapped.no_sync():
                loss(wrapped, data(step, rank, 1)).backward()
        loss(wrapped, data(step, rank, 0)).backward()
        updates.step()
        snapshots.append(snapshot(module))
    wrapped.close()
    return snapshots, wrapped.plan.to_json()


@pytest.mark.parametrize(("algorithm", "order", "node_of"), CASES)
def test_training_equals_the_reference_after_every_step(
    ranks: Any, algorithm: str, order: str, node_of: tuple[int, ...]
) -> None:
    importlib.import_module("torch._dynamo")  # optimizers import it: once here, not in each rank
    values = ranks.run(4, lambda rank: train_here(rank, algorithm, order, node_of))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module = build()
    reference = Reference(module, ReductionPlan.from_json(values[0][1]))
    updates = optimizer(module)
    for step in range(NUM_STEPS):
        updates.zero_grad(set_to_none=step % 2 == 0)

        def run_rank(rank: int, step: int = step) -> None:
            if step == 2:
                with reference.no_sync():
                    loss(reference, data(step, rank, 1)).backward()
            loss(reference, data(step, rank, 0)).backward()

        reference.backward(run_rank)
        updates.step()
        assert values[0][0][step] == snapshot(module), "rank 0 has the buffers that last"
        for rank in range(4):
            with reference.as_rank(rank):
                assert values[rank][0][step] == snapshot(module), (step, rank)
    torch.set_num_threads(threads)


def test_other_plan_other_bytes() -> None:
    """The comparison above can fail: another order of the same sum is told apart."""
    grads = [{"w": torch.randn(999, generator=torch.Generator().manual_seed(r))} for r in range(4)]
    from ddp.plan import BucketLayout
    from ddp.reference import reduce_gradients

    bucket = BucketLayout("float32", ("w",), (999,), 1, 4)
    found = []
    for order in ("contiguous", "interleaved"):
        plan = ReductionPlan("ring", order, 0, (0, 0, 1, 1), (bucket,))
        schedule = plan.schedule()
        assert schedule is not None
        found.append(reduce_gradients(plan.buckets, {"ring": schedule}, grads)["w"])
    assert torch.allclose(*found, atol=1e-6)
    assert not torch.equal(*found)


def test_native_has_nothing_to_replay() -> None:
    with pytest.raises(PlanError, match="native"):
        Reference(build(), ReductionPlan("native", "contiguous", 0, (0, 1), ()))
