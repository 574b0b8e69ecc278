"""Buffers over 2 GiB, or of over 2^31 elements: offsets and counts, on tensors without memory.

What each rank sends and receives is recorded where its transport would move it.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.cost import payload_bytes
from ddp.executor import ScheduledCollective
from ddp.fabric import Fabric
from ddp.replay import replay
from ddp.schedule import Schedule, chunk_bounds
from tests.ddp.variants import VARIANTS, Variant

BY_NAME = pytest.mark.parametrize("variant", VARIANTS, ids=str)
NUMELS = [2**29 + 1, 2**31 - 1, 2**31 + 11, 2**33 + 5]
FABRIC = Fabric((0, 1, 0, 1))


class Recorder:
    """Peer, message, offset and length of every send and receive."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int, int]] = []
        self.received: list[tuple[int, int, int, int]] = []

    def send(self, tensor: Tensor, peer: int, tag: int) -> "Recorder":
        self.sent.append((peer, tag, tensor.storage_offset(), tensor.numel()))
        return self

    def recv(self, tensor: Tensor, peer: int, tag: int) -> "Recorder":
        self.received.append((peer, tag, tensor.storage_offset(), tensor.numel()))
        return self

    def borrow(self, like: Tensor, peer: int, tag: int) -> "Borrowed":
        self.recv(like, peer, tag)
        return Borrowed(like, partial(self.send, peer=peer))

    def wait(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


class Borrowed:
    is_the_peers = False

    def __init__(self, like: Tensor, send: Any) -> None:
        self.data = torch.empty_like(like)
        self.send = send

    def wait(self, timeout_s: float) -> Tensor:  # noqa: ARG002
        return self.data

    def end(self) -> None: ...

    def hand_back(self, written: Tensor, tag: int) -> Any:
        return self.send(written, tag=tag)


def without_memory(numel: int) -> Tensor:
    return torch.empty(numel, device="meta")


@pytest.mark.parametrize("num_chunks", [1, 3, 7, 64, 1000])
@pytest.mark.parametrize("numel", NUMELS)
def test_chunks_tile_the_buffer(numel: int, num_chunks: int) -> None:
    bounds = [chunk_bounds(numel, num_chunks, chunk) for chunk in range(num_chunks)]
    assert bounds[0][0] == 0 and bounds[-1][1] == numel
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))
    split = without_memory(numel).tensor_split(num_chunks)
    assert [(part.storage_offset(), part.numel()) for part in split] == [
        (start, end - start) for start, end in bounds
    ]


@pytest.mark.parametrize("segments", [1, 5])
@pytest.mark.parametrize("numel", NUMELS)
@BY_NAME
def test_ranks_send_the_right_places_and_count_them(
    variant: Variant, numel: int, segments: int
) -> None:
    schedule = variant.build(FABRIC)
    recorders = [Recorder() for _ in range(4)]
    between = dict.fromkeys((0, 1), 0)
    for rank, recorder in enumerate(recorders):
        transport: Any = recorder
        collective = ScheduledCollective(schedule, rank, FABRIC, transport, 1)
        traffic = collective.all_reduce(without_memory(numel), segments, 0)
        between[FABRIC.node_of[rank]] += traffic.inter_node_bytes or 0

    assert between == payload_bytes(schedule, FABRIC, numel, 4, segments)
    wanted = sorted(sends(schedule, numel, segments))
    found = [(rank, *each) for rank, recorder in enumerate(recorders) for each in recorder.sent]
    assert sorted(found) == wanted
    for src, dst, tag, offset, length in found:
        assert (src, tag, offset, length) in recorders[dst].received


def sends(schedule: Schedule, numel: int, segments: int) -> Any:
    """Source, destination, tag, offset and length of every message; chunks in a row are one."""
    num_chunks = schedule.num_chunks
    for index, stage in enumerate(schedule):
        for segment in range(segments):
            start, end = chunk_bounds(numel, segments, segment)
            edges = [chunk_bounds(end - start, num_chunks, c) for c in range(num_chunks)]
            runs: dict[tuple[int, int], list[list[int]]] = {}
            for transfer in stage:
                low, high = edges[transfer.chunk]
                run = runs.setdefault((transfer.src, transfer.dst), [])
                if run and run[-1][1] == low:
                    run[-1][1] = high
                else:
                    run.append([low, high])
            for (src, dst), places in runs.items():
                for low, high in places:
                    yield src, dst, index * segments + segment, start + low, high - low


@BY_NAME
def test_replay_and_fold_cut_the_same(variant: Variant) -> None:
    numel = 2**31 + 11
    buffers = [without_memory(numel)] * 4
    for result in (*replay(variant.build(FABRIC), buffers, 3), variant.fold(FABRIC, buffers, 3)):
        assert result.shape == (numel,)
