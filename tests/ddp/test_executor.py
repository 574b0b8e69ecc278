"""The executor: the same bytes as replay and fold, whatever the delays; every message awaited."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.algorithms import (
    hierarchical_leader_schedule,
    hierarchical_schedule,
    parameter_server_schedule,
    ring_for,
    ring_schedule,
)
from ddp.cost import payload_bytes
from ddp.errors import DdpError
from ddp.executor import NativeCollective, NoCollective, ScheduledCollective, make_collective
from ddp.fabric import Fabric
from ddp.fold import (
    fold_hierarchical,
    fold_hierarchical_leader,
    fold_parameter_server,
    fold_ring,
)
from ddp.program import IN_FLIGHT
from ddp.replay import replay
from ddp.schedule import Schedule
from ddp.timing import Traffic
from ddp.transport.p2p import P2PTransport
from tests.ddp.samples import random_buffers

InMemory = Callable[..., tuple[list[Tensor], list[Traffic]]]

FABRICS = {
    "2x2": (0, 0, 1, 1),
    "2x2 scattered": (0, 1, 1, 0),
    "unequal": (0, 0, 0, 1, 1, 2),
    "unequal scattered": (1, 0, 2, 0, 1, 0),
    "one node": (0, 0, 0),
    "one rank a node": (0, 1, 2),
    "one rank": (0,),
}
ORDERS = ("contiguous", "interleaved", "shuffled")
GROUPED = ("hierarchical", "hierarchical_leader", "parameter_server")
NUMELS = (0, 1, 5, 6, 7, 997)


def build(algorithm: str, fabric: Fabric) -> Schedule:
    if algorithm == "hierarchical":
        return hierarchical_schedule(fabric.groups)
    if algorithm == "hierarchical_leader":
        return hierarchical_leader_schedule(fabric.groups)
    if algorithm == "parameter_server":
        return parameter_server_schedule(fabric.num_ranks)
    return ring_schedule(ring_for(fabric, algorithm, 7 if algorithm == "shuffled" else 0))


def fold(algorithm: str, fabric: Fabric, buffers: list[Tensor], segments: int) -> Tensor:
    if algorithm == "hierarchical":
        return fold_hierarchical(buffers, fabric.groups, segments)
    if algorithm == "hierarchical_leader":
        return fold_hierarchical_leader(buffers, fabric.groups, segments)
    if algorithm == "parameter_server":
        return fold_parameter_server(buffers)
    order = ring_for(fabric, algorithm, 7 if algorithm == "shuffled" else 0)
    return fold_ring(buffers, order, segments)


@pytest.mark.parametrize("algorithm", [*ORDERS, *GROUPED])
@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
def test_same_bytes_as_replay_and_fold(
    in_memory: InMemory, fabric: tuple[int, ...], algorithm: str
) -> None:
    placed = Fabric(fabric)
    schedule = build(algorithm, placed)
    for numel, segments in itertools.product(NUMELS, (1, 3)):
        buffers = random_buffers(placed.num_ranks, numel)
        results, _ = in_memory(schedule, placed, buffers, segments, seed=numel, max_delay_s=5e-4)
        expected = fold(algorithm, placed, buffers, segments)
        for result, replayed in zip(results, replay(schedule, buffers, segments), strict=True):
            assert torch.equal(result, replayed)
            assert torch.equal(result, expected)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("algorithm", ["contiguous", *GROUPED])
def test_delays_and_many_segments_change_nothing(
    in_memory: InMemory, algorithm: str, seed: int
) -> None:
    fabric = Fabric((0, 1, 0, 1))
    schedule = build(algorithm, fabric)
    buffers = random_buffers(4, 211)
    segments = 2 * IN_FLIGHT + 1
    results, _ = in_memory(
        schedule, fabric, buffers, segments, seed=seed, max_delay_s=3e-3, scribble=True
    )
    expected = fold(algorithm, fabric, buffers, segments)
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("algorithm", [*ORDERS, *GROUPED])
@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
def test_bytes_sent_are_those_of_the_schedule(
    in_memory: InMemory, fabric: tuple[int, ...], algorithm: str
) -> None:
    placed = Fabric(fabric)
    schedule = build(algorithm, placed)
    numel, segments = 1_001, 3
    buffers = random_buffers(placed.num_ranks, numel)
    _, traffic = in_memory(schedule, placed, buffers, segments)
    by_node = dict.fromkeys(fabric, 0)
    for rank, node in enumerate(fabric):
        by_node[node] += traffic[rank].inter_node_bytes or 0
    assert by_node == payload_bytes(schedule, placed, numel, 4, segments)


def test_noop_leaves_the_buffer_alone() -> None:
    buffer = torch.arange(5.0)
    collective = make_collective("noop", None, 0, Fabric((0, 1)), None, 1.0)  # type: ignore[arg-type]
    assert isinstance(collective, NoCollective)
    assert collective.all_reduce(buffer, 2, 0) == Traffic(0, 0)
    assert torch.equal(buffer, torch.arange(5.0))


def test_unknown_collective_is_refused() -> None:
    with pytest.raises(DdpError, match="rign"):
        make_collective("rign", None, 0, Fabric((0,)), None, 1.0)  # type: ignore[arg-type]


DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64)


def test_real_sockets_give_the_bytes_of_replay(ranks: Any) -> None:
    """gloo on 127.0.0.1: every algorithm, edge sizes, every dtype."""
    fabric = Fabric((0, 1, 0, 1))
    cases = [
        (algorithm, numel, segments, torch.float32)
        for algorithm in (*ORDERS, *GROUPED)
        for numel, segments in ((0, 1), (1, 2), (3, 1), (4, 1), (10_007, 1), (300_007, 12))
    ]
    cases += [("hierarchical", 101, 2, dtype) for dtype in DTYPES]

    def inputs(numel: int, dtype: torch.dtype) -> list[Tensor]:
        buffers = random_buffers(4, numel)
        return [(buffer * 100).to(dtype) for buffer in buffers]

    def body(rank: int) -> list[Tensor]:
        import torch.distributed as dist

        transport = P2PTransport(dist.group.WORLD)  # type: ignore[arg-type]
        results = []
        for algorithm, numel, segments, dtype in cases:
            schedule = build(algorithm, fabric)
            collective = ScheduledCollective(schedule, rank, fabric, transport, 20)
            buffer = inputs(numel, dtype)[rank]
            collective.all_reduce(buffer, segments, 0)
            results.append(torch.view_as_real(buffer) if buffer.is_complex() else buffer)
        return [result.to(torch.float64).numpy() for result in results]

    values = ranks.run(4, body)
    for place, (algorithm, numel, segments, dtype) in enumerate(cases):
        buffers = inputs(numel, dtype)
        expected = replay(build(algorithm, fabric), buffers, segments)[0]
        real = torch.view_as_real(expected) if expected.is_complex() else expected
        for rank in range(4):
            found = torch.from_numpy(values[rank][place])
            assert torch.equal(found, real.to(torch.float64)), (algorithm, numel, dtype, rank)


def test_native_sums_exact_integers(ranks: Any) -> None:
    def body(rank: int) -> list[list[float]]:
        import torch.distributed as dist

        group = dist.group.WORLD
        assert group is not None
        collective = NativeCollective(group._get_backend(torch.device("cpu")), 20)
        real = torch.arange(7.0) * (rank + 1)
        complex_ = torch.complex(torch.arange(3.0), torch.full((3,), float(rank)))
        empty = torch.zeros(0)
        sent = [collective.all_reduce(b, 1, 0) for b in (real, complex_, empty)]
        assert sent == [Traffic(None, None)] * 3
        return [real.tolist(), torch.view_as_real(complex_).flatten().tolist()]

    for real, complex_ in ranks.run(3, body):
        assert real == [6.0 * k for k in range(7)]
        assert complex_ == [0.0, 3.0, 3.0, 3.0, 6.0, 3.0]
