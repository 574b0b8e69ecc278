"""Which buffers the executor takes, and for how long it remembers them."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ddp.algorithms import ring_schedule
from ddp.errors import UsageError
from ddp.executor import ScheduledCollective
from ddp.fabric import Fabric
from ddp.transport.memory import MemoryNetwork
from tests.ddp.conftest import run_threads

GAPS = {
    "every other element": torch.arange(12.0)[::2],
    "two dimensions": torch.arange(12.0).view(4, 3),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "no dimension": torch.tensor(1.0),
    "one element, seen six times": torch.ones(1).expand(6),
}


def pair() -> list[ScheduledCollective]:
    """Two ranks that sum."""
    network = MemoryNetwork(2)
    return [
        ScheduledCollective(ring_schedule((0, 1)), rank, Fabric((0, 1)), network.transport(rank), 5)
        for rank in (0, 1)
    ]


def reduce(ranks: list[ScheduledCollective], buffers: list[Tensor]) -> None:
    run_threads(2, lambda rank: ranks[rank].all_reduce(buffers[rank], 2, 0))


@pytest.mark.parametrize("name", GAPS)
def test_a_buffer_that_is_not_a_row_is_refused_and_left_alone(name: str) -> None:
    buffer, before = GAPS[name], GAPS[name].clone()
    transport = MemoryNetwork(2).transport(0)
    collective = ScheduledCollective(ring_schedule((0, 1)), 0, Fabric((0, 1)), transport, 5)
    with pytest.raises(UsageError, match=r"bucket 3: a buffer of shape .* and stride .*view\(-1\)"):
        collective.all_reduce(buffer, 1, 3)
    assert torch.equal(buffer, before)
    transport.close()  # nothing was sent


def elsewhere(buffer: Tensor) -> None:
    buffer.data = torch.full((6,), 3.0)


def longer(buffer: Tensor) -> None:
    buffer.data = torch.full((9,), 3.0)


def another_dtype(buffer: Tensor) -> None:
    buffer.data = torch.full((6,), 3.0, dtype=torch.float64)


def shorter(buffer: Tensor) -> None:
    buffer.resize_(3)


@pytest.mark.parametrize("move", [elsewhere, longer, another_dtype, shorter])
def test_a_tensor_that_got_other_memory_is_summed_there(move: Callable[[Tensor], None]) -> None:
    ranks, buffers = pair(), [torch.arange(6.0), torch.arange(6.0)]
    reduce(ranks, buffers)
    for buffer in buffers:
        move(buffer)
    wanted = 2 * buffers[0]

    reduce(ranks, buffers)

    assert torch.equal(buffers[0], wanted) and torch.equal(buffers[1], wanted)


def test_a_tensor_that_has_gaps_now_is_refused() -> None:
    ranks, buffers = pair(), [torch.arange(6.0), torch.arange(6.0)]
    reduce(ranks, buffers)
    buffers[0].data = torch.ones(12)[::2]
    with pytest.raises(UsageError, match=r"stride \(2,\)"):
        ranks[0].all_reduce(buffers[0], 2, 0)


def test_buffers_are_not_kept() -> None:
    ranks = pair()
    gone = []
    for size in range(5, 10):
        buffers = [torch.ones(size), torch.ones(size)]
        reduce(ranks, buffers)
        gone += [weakref.ref(buffer) for buffer in buffers]
        del buffers
    gc.collect()
    assert [each() for each in gone] == [None] * 10
