"""The executor: the same bytes as replay and fold, whatever the delays; every message awaited."""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.cost import payload_bytes
from ddp.errors import DdpError
from ddp.executor import NativeCollective, NoCollective, ScheduledCollective, make_collective
from ddp.fabric import Fabric
from ddp.program import IN_FLIGHT
from ddp.replay import replay
from ddp.timing import Traffic
from ddp.transport import Loan, Pending, Transport
from ddp.transport.p2p import P2PTransport
from tests.ddp.samples import random_buffers
from tests.ddp.variants import DTYPES, VARIANTS, Variant, random_floats, same_bytes

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
NUMELS = (0, 1, 5, 6, 7, 997)
EVERYWHERE = [
    pytest.param(variant, fabric, id=f"{variant} on {name}")
    for name, fabric in ((name, Fabric(node_of)) for name, node_of in FABRICS.items())
    for variant in VARIANTS
    if variant.serves(fabric)
]
BY_NAME = pytest.mark.parametrize("variant", VARIANTS, ids=str)


@pytest.mark.parametrize(("variant", "fabric"), EVERYWHERE)
def test_same_bytes_as_replay_and_fold(
    in_memory: InMemory, variant: Variant, fabric: Fabric
) -> None:
    schedule = variant.build(fabric)
    for numel, segments in itertools.product(NUMELS, (1, 3)):
        buffers = random_floats(fabric.num_ranks, numel)
        results, _ = in_memory(schedule, fabric, buffers, segments, seed=numel, max_delay_s=5e-4)
        expected = variant.fold(fabric, buffers, segments)
        for result, replayed in zip(results, replay(schedule, buffers, segments), strict=True):
            assert same_bytes(result, replayed)
            assert same_bytes(result, expected)


@BY_NAME
def test_every_dtype_is_summed_in_itself(in_memory: InMemory, variant: Variant) -> None:
    fabric = Fabric((0, 1, 0, 1))
    schedule = variant.build(fabric)
    for dtype in DTYPES:
        buffers = random_floats(4, 23, dtype)
        expected = variant.fold(fabric, buffers, 2)
        for result in in_memory(schedule, fabric, buffers, 2)[0]:
            assert same_bytes(result, expected), dtype


@pytest.mark.parametrize("seed", range(3))
@BY_NAME
def test_delays_and_many_segments_change_nothing(
    in_memory: InMemory, variant: Variant, seed: int
) -> None:
    fabric = Fabric((0, 1, 0, 1))
    schedule = variant.build(fabric)
    buffers = random_floats(4, 211)
    segments = 2 * IN_FLIGHT + 1
    results, _ = in_memory(
        schedule, fabric, buffers, segments, seed=seed, max_delay_s=2e-3, scribble=True
    )
    expected = variant.fold(fabric, buffers, segments)
    assert all(same_bytes(result, expected) for result in results)


class Tardy:
    """A transport whose rank is late, by seed, to whatever it begins."""

    def __init__(self, inner: Transport, seed: int) -> None:
        self.inner = inner
        self.generator = random.Random(seed)

    def late(self) -> None:
        if self.generator.random() < 0.3:
            time.sleep(self.generator.uniform(0, 5e-3))

    def send(self, tensor: Tensor, peer: int, tag: int) -> Pending:
        self.late()
        return self.inner.send(tensor, peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Pending:
        self.late()
        return self.inner.recv(tensor, peer, tag)

    def borrow(self, like: Tensor, peer: int, tag: int) -> Loan:
        self.late()
        return self.inner.borrow(like, peer, tag)

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return self.inner.allocate(rows)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("seed", range(3))
@BY_NAME
def test_ranks_that_enter_stages_late_change_nothing(
    in_memory: InMemory, variant: Variant, seed: int
) -> None:
    """Other ranks are a stage ahead of them by then, and would write what they still read."""
    fabric = Fabric((1, 0, 2, 1, 0, 0, 0, 2))
    schedule = variant.build(fabric)
    buffers = random_floats(8, 97)

    def wrap(rank: int, transport: Transport) -> Transport:
        return Tardy(transport, 8 * seed + rank)

    results, _ = in_memory(schedule, fabric, buffers, 3, wrap=wrap, scribble=True)
    expected = variant.fold(fabric, buffers, 3)
    assert all(same_bytes(result, expected) for result in results)


@pytest.mark.parametrize(("variant", "fabric"), EVERYWHERE)
def test_bytes_sent_are_those_of_the_schedule(
    in_memory: InMemory, variant: Variant, fabric: Fabric
) -> None:
    schedule = variant.build(fabric)
    numel, segments = 1_001, 3
    buffers = random_buffers(fabric.num_ranks, numel)
    _, traffic = in_memory(schedule, fabric, buffers, segments)
    by_node = dict.fromkeys(fabric.node_of, 0)
    for rank, node in enumerate(fabric.node_of):
        by_node[node] += traffic[rank].inter_node_bytes or 0
    assert by_node == payload_bytes(schedule, fabric, numel, 4, segments)


def test_noop_leaves_the_buffer_alone() -> None:
    buffer = torch.arange(5.0)
    collective = make_collective("noop", None, 0, Fabric((0, 1)), None, 1.0)  # type: ignore[arg-type]
    assert isinstance(collective, NoCollective)
    assert collective.all_reduce(buffer, 2, 0) == Traffic(0, 0)
    assert torch.equal(buffer, torch.arange(5.0))


def test_unknown_collective_is_refused() -> None:
    with pytest.raises(DdpError, match="rign"):
        make_collective("rign", None, 0, Fabric((0,)), None, 1.0)  # type: ignore[arg-type]


def test_real_sockets_give_the_bytes_of_replay(ranks: Any) -> None:
    """gloo on 127.0.0.1: every algorithm, edge sizes, every dtype."""
    fabric = Fabric((0, 1, 0, 1))
    cases = [
        (variant, numel, segments, torch.float32)
        for variant in VARIANTS
        for numel, segments in ((0, 1), (1, 2), (3, 1), (4, 1), (10_007, 1), (300_007, 12))
    ]
    cases += [(Variant("hierarchical"), 101, 2, dtype) for dtype in DTYPES]

    def body(rank: int) -> list[Any]:
        import torch.distributed as dist

        transport = P2PTransport(dist.group.WORLD)  # type: ignore[arg-type]
        results = []
        for variant, numel, segments, dtype in cases:
            schedule = variant.build(fabric)
            collective = ScheduledCollective(schedule, rank, fabric, transport, 20)
            buffer = random_floats(4, numel, dtype)[rank]
            collective.all_reduce(buffer, segments, 0)
            results.append(buffer.view(torch.uint8).numpy())
        return results

    values = ranks.run(4, body)
    for place, (variant, numel, segments, dtype) in enumerate(cases):
        expected = replay(variant.build(fabric), random_floats(4, numel, dtype), segments)[0]
        for rank in range(4):
            found = torch.from_numpy(values[rank][place])
            assert torch.equal(found, expected.view(torch.uint8)), (variant, numel, dtype, rank)


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
