"""On real GPUs: gradients are what one process computes. One rank a GPU, as NCCL wants."""

import subprocess
from typing import Any

import pytest
import torch
from torch import nn

from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.parallel import DistributedDataParallel

pytestmark = pytest.mark.gpu
SHAPES = (5, 7, 3)


def num_gpus() -> int:
    """Asked of the driver: CUDA may not begin in the process that forks the ranks."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


def model() -> nn.Sequential:
    """Small whole numbers, so that every order of additions gives the same."""
    layers = nn.Sequential(nn.Linear(*SHAPES[:2]), nn.Linear(*SHAPES[1:]))
    for parameter in layers.parameters():
        nn.init.constant_(parameter, 2.0)
    return layers


def gradients_of(module: nn.Module) -> list[Any]:
    return [p.grad.cpu().tolist() for p in module.parameters() if p.grad is not None]


def mean_of(num_ranks: int) -> list[Any]:
    layers = model()
    for rank in range(num_ranks):
        (layers(torch.full((1, SHAPES[0]), rank + 1.0)).sum() / num_ranks).backward()
    return gradients_of(layers)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("algorithm", ["hierarchical", "native"])
def test_gradients_are_the_mean_and_times_are_in_order(
    ranks: Any, algorithm: str, overlap: bool
) -> None:
    num_ranks = min(num_gpus(), 4)
    if num_ranks == 3:
        num_ranks = 2
    node_of = (0,) if num_ranks == 1 else tuple(rank % 2 for rank in range(num_ranks))

    def body(rank: int) -> tuple[list[Any], bool]:
        gpu = torch.device("cuda", rank)
        torch.cuda.set_device(gpu)
        layers = model().to(gpu)
        if rank:
            nn.init.zeros_(layers[0].weight)  # rank 0's come instead
        wrapped = DistributedDataParallel(
            layers,
            [rank],
            algorithm=algorithm,
            per_parameter=True,
            overlap=overlap,
            fabric=Fabric(node_of),
        )
        for _ in range(2):
            layers.zero_grad()
            wrapped(torch.full((1, SHAPES[0]), rank + 1.0, device=gpu)).sum().backward()
            seen = wrapped.communication()
        times = [each for b in seen.buckets for each in (b.ready_ns, b.start_ns, b.end_ns)]
        in_order = all(b.ready_ns <= b.start_ns <= b.end_ns for b in seen.buckets)
        in_order &= max(times) == seen.exposed[-1][1]
        gradients = gradients_of(layers)
        wrapped.close()
        return gradients, in_order

    assert ranks.run(num_ranks, body) == [(mean_of(num_ranks), True)] * num_ranks


def test_other_algorithms_are_refused_with_the_fix(ranks: Any) -> None:
    def body(_rank: int) -> str:
        with pytest.raises(UsageError) as caught:
            DistributedDataParallel(model().to("cuda:0"), algorithm="ring")
        return str(caught.value)

    (text,) = ranks.run(1, body)
    assert "algorithm='ring' sends messages of its own" in text
    assert "use algorithm='hierarchical' or 'native' there" in text
