"""What the executor waits for: a forgotten acknowledgement or transfer shows; peers are named."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.algorithms import ring_schedule
from ddp.errors import PeerTimeout, TransportError
from ddp.executor import ScheduledCollective
from ddp.fabric import Fabric
from ddp.program import IN_FLIGHT, merge, project, wavefront
from ddp.replay import replay
from ddp.schedule import Schedule, Transfer
from ddp.timing import Traffic
from ddp.transport import Transport
from ddp.transport.memory import MemoryNetwork
from tests.ddp.samples import random_buffers
from tests.ddp.variants import VARIANTS, Variant

InMemory = Callable[..., tuple[list[Tensor], list[Traffic]]]


BY_NAME = pytest.mark.parametrize("variant", VARIANTS, ids=str)
RING_OF_TWO = ring_schedule((0, 1))


def test_both_ends_write_what_they_send(in_memory: InMemory) -> None:
    """A chunk that is sent and written in one stage is sent as it was before."""
    swap = ((Transfer(0, 1, 0, reduce=False), Transfer(1, 0, 0, reduce=False)),)
    exchange = ((Transfer(0, 1, 0, reduce=True), Transfer(1, 0, 0, reduce=True)),)
    for stages, expected in ((swap, ([5.0], [3.0])), (exchange, ([8.0], [8.0]))):
        schedule = Schedule(2, 1, "both", partial(iter, stages))
        results, _ = in_memory(
            schedule, Fabric((0, 1)), [torch.tensor([3.0]), torch.tensor([5.0])], 1
        )
        assert [result.tolist() for result in results] == list(expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_receive_that_is_early_does_not_disturb_the_stage_before(
    in_memory: InMemory, seed: int
) -> None:
    """Rank 2 has nothing to wait for, so its chunk may arrive while stage 0 is under way."""
    sent_before = ((Transfer(0, 1, 0, reduce=False),), (Transfer(2, 0, 0, reduce=False),))
    added_before = ((Transfer(1, 0, 0, reduce=True),), (Transfer(2, 0, 0, reduce=False),))
    buffers = [torch.tensor([3.0]), torch.tensor([5.0]), torch.tensor([7.0])]
    for stages in (sent_before, added_before):
        schedule = Schedule(3, 1, "early", partial(iter, stages))
        results, _ = in_memory(schedule, Fabric((0, 1, 2)), buffers, 1, seed=seed, max_delay_s=0.02)
        assert results == replay(schedule, buffers)


class Forgetful:
    """A transport whose user forgets to wait for one send: the mutant that drops an ack."""

    def __init__(self, inner: Transport, forgotten: int) -> None:
        self.inner = inner
        self.forgotten = forgotten
        self.num_sends = 0

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self.count(self.inner.send(tensor, peer, tag))

    def count(self, pending: Any) -> Any:
        self.num_sends += 1
        return Never() if self.num_sends - 1 == self.forgotten else pending

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self.inner.recv(tensor, peer, tag)

    def borrow(self, like: Tensor, peer: int, tag: int) -> Any:
        return CountedLoan(self.inner.borrow(like, peer, tag), self.count)

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return self.inner.allocate(rows)

    def close(self) -> None:
        self.inner.close()


class CountedLoan:
    """What is handed back is sent, too."""

    def __init__(self, inner: Any, count: Callable[[Any], Any]) -> None:
        self.inner = inner
        self.count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def hand_back(self, written: Tensor, tag: int) -> Any:
        return self.count(self.inner.hand_back(written, tag))


class Never:
    def wait(self, timeout_s: float) -> None:
        """Forgotten."""


@BY_NAME
def test_one_forgotten_acknowledgement_is_caught(in_memory: InMemory, variant: Variant) -> None:
    """Of every send of every rank, in turn."""
    fabric = Fabric((0, 0, 1, 1))
    schedule = variant.build(fabric)
    buffers = random_buffers(4, 64)
    num_sends = [sum(len(each.sends) for each in project(schedule, rank)) for rank in range(4)]
    assert min(num_sends) >= 1 and sum(num_sends) >= 6
    forgotten = [(rank, send) for rank in range(4) for send in range(num_sends[rank])]
    for forgetful, send in forgotten:

        def wrap(
            rank: int, inner: Transport, whose: int = forgetful, which: int = send
        ) -> Transport:
            return Forgetful(inner, which) if rank == whose else inner

        with pytest.raises(TransportError, match="acknowledged"):
            in_memory(schedule, fabric, buffers, 1, wrap=wrap, scribble=True)


def test_returning_before_the_last_acknowledgement_corrupts(in_memory: InMemory) -> None:
    """Why acknowledgements matter: the peer reads what the caller wrote after the call."""
    fabric = Fabric((0, 1))
    schedule = RING_OF_TWO

    def wrap(rank: int, transport: Transport) -> Transport:
        return Forgetful(transport, 1) if rank == 0 else transport

    with pytest.raises(TransportError, match="acknowledged"):
        in_memory(
            schedule,
            fabric,
            random_buffers(2, 8),
            1,
            max_delay_s=0.02,
            wrap=wrap,
            scribble=True,
        )


@BY_NAME
def test_one_missing_transfer_is_caught(in_memory: InMemory, variant: Variant) -> None:
    fabric = Fabric((0, 0, 1, 1))
    whole = variant.build(fabric)
    stages = list(whole)
    buffers = random_buffers(4, 64)
    expected = replay(whole, buffers)[0]
    for index, stage in enumerate(stages):
        for missing in range(len(stage)):
            rest = (*stage[:missing], *stage[missing + 1 :])
            mutant = [*stages[:index], *filter(None, [rest]), *stages[index + 1 :]]
            schedule = replace(whole, stages=partial(iter, mutant))
            results, _ = in_memory(schedule, fabric, buffers, 1)
            assert not all(torch.equal(result, expected) for result in results)


def test_a_silent_peer_is_named_with_bucket_and_stage() -> None:
    fabric = Fabric((0, 1))
    transport = MemoryNetwork(2).transport(0)
    collective = ScheduledCollective(RING_OF_TWO, 0, fabric, transport, 0.05)
    with pytest.raises(PeerTimeout) as raised:
        collective.all_reduce(torch.ones(4), 1, 3)
    text = "bucket 3, stage 0, segment 0: rank 1 sent nothing for 0.05 s"
    assert str(raised.value) == text


def test_a_peer_that_leaves_is_named() -> None:
    fabric = Fabric((0, 1))
    network = MemoryNetwork(2)
    network.transport(1).close()
    collective = ScheduledCollective(RING_OF_TWO, 0, fabric, network.transport(0), 10)
    with pytest.raises(
        TransportError, match=r"bucket 0, stage 0.* with rank 1 failed: rank 1 has closed"
    ):
        collective.all_reduce(torch.ones(4), 1, 0)


def test_neighbouring_chunks_travel_together() -> None:
    stage = tuple(
        Transfer(src, dst, chunk, reduce)
        for src, dst, chunk, reduce in (
            (0, 1, 0, True),
            (2, 1, 3, True),
            (0, 1, 1, True),  # after (0, 1, 0), with another pair between them
            (0, 1, 2, False),  # a neighbour, but not added
            (0, 2, 3, True),
            (2, 1, 5, True),  # not a neighbour of 3
        )
    )
    found = [(m.src, m.dst, m.first, m.last, m.reduce) for m in merge(stage)]
    assert found == [
        (0, 1, 0, 1, True),
        (2, 1, 3, 3, True),
        (0, 1, 2, 2, False),
        (0, 2, 3, 3, True),
        (2, 1, 5, 5, True),
    ]


@pytest.mark.parametrize("num_stages", [0, 1, 2, 3 * IN_FLIGHT])
@pytest.mark.parametrize("segments", [1, 3, IN_FLIGHT, 3 * IN_FLIGHT + 2])
def test_wavefront_starts_each_item_once_in_order_and_bounded(
    num_stages: int, segments: int
) -> None:
    items = list(wavefront(num_stages, segments))
    wanted = itertools.product(range(num_stages + 1), range(segments))
    assert sorted(items) == sorted(wanted)
    position = {item: place for place, item in enumerate(items)}
    for stage, segment in items:
        if stage:
            assert position[stage - 1, segment] < position[stage, segment]
    in_flight = 0
    for stage, _ in items:
        in_flight += (stage == 0) - (stage == num_stages)
        # a segment may enter in the very tick in which another, listed before it, leaves
        assert in_flight <= IN_FLIGHT
