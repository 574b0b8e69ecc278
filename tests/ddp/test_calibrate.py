"""Calibration between threads: the same figures everywhere, in no long time on a slow inside."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp import calibrate
from ddp.calibrate import LARGE_NUMEL, Calibration
from ddp.fabric import Fabric
from ddp.transport.memory import MemoryNetwork, MemoryTransport

FABRICS = [(0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 0)]


@dataclass
class Counting:
    """A transport that counts what is sent, by size."""

    inner: MemoryTransport
    sent: Counter[int] = field(default_factory=Counter)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        self.sent[tensor.numel()] += 1
        return self.inner.send(tensor, peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self.inner.recv(tensor, peer, tag)

    def borrow(self, like: Tensor, peer: int, tag: int) -> Any:
        return self.inner.borrow(like, peer, tag)

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return self.inner.allocate(rows)

    def close(self) -> None:
        self.inner.close()


def calibrated(node_of: tuple[int, ...]) -> tuple[list[Calibration], Counter[int]]:
    """What every rank finds, and how many messages of each size all of them sent."""
    network = MemoryNetwork(len(node_of))
    ends = [Counting(network.transport(rank)) for rank in range(len(node_of))]
    found: dict[int, Calibration] = {}

    def body(rank: int) -> None:
        found[rank] = calibrate.calibrate(ends[rank], rank, Fabric(node_of))
        ends[rank].close()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(node_of))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(len(node_of))], sum((e.sent for e in ends), Counter())


@pytest.mark.parametrize("node_of", FABRICS)
def test_every_rank_finds_the_same(node_of: tuple[int, ...]) -> None:
    values, sent = calibrated(node_of)
    assert len(set(values)) == 1
    assert (values[0].alpha_inter_s is None) == (len(set(node_of)) == 1)
    assert values[0].alpha_intra_s is not None and values[0].intra_bytes_per_s is not None
    assert sent[LARGE_NUMEL] > 0


@pytest.mark.parametrize("node_of", FABRICS)
@pytest.mark.parametrize(("fast", "slow", "hops"), [(inf, 1e-9, 1), (inf, inf, 0), (1e-9, 1e-9, 5)])
def test_a_slow_inside_is_measured_once_or_not_at_all(
    node_of: tuple[int, ...], fast: float, slow: float, hops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "FAST_INSIDE_BYTES_PER_S", fast)
    monkeypatch.setattr(calibrate, "SLOW_INSIDE_BYTES_PER_S", slow)
    values, sent = calibrated(node_of)
    assert len(set(values)) == 1
    assert (values[0].intra_bytes_per_s is None) == (hops == 0)
    assert values[0].alpha_intra_s is not None
    in_company = sum(node_of.count(node) > 1 for node in node_of)  # who has a neighbour
    assert sent[LARGE_NUMEL] == hops * calibrate.LARGE_HOPS * in_company
