"""How NCCL's groups are made and ended, by stand-ins for what torch has on a machine with a GPU."""

import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddp.errors import TransportError
from ddp.native import WATCHDOG, close_all, nccl_groups

STORE: Any = dist.HashStore()
GPU_3 = torch.device("cuda", 3)


class FakeNccl:
    """Stands in for ProcessGroupNCCL."""

    class Options:
        _timeout: Any = None

    fails = False

    def __init__(self, _store: Any, place: int, size: int, options: Any) -> None:
        self.made_with = (place, size, options._timeout.total_seconds())
        self.watchdog = os.environ.get(WATCHDOG)
        self.connected: list[torch.device] = []

    def eager_connect_single_device(self, gpu: torch.device) -> None:
        if self.fails:
            raise RuntimeError("no route")
        self.connected.append(gpu)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> type[FakeNccl]:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
    return FakeNccl


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("before", [None, "1"])
def test_a_group_ends_no_process_and_is_connected_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv(WATCHDOG, raising=False)
    else:
        monkeypatch.setenv(WATCHDOG, before)  # as torchrun does
    group: Any = nccl_groups(GPU_3, STORE, 5, 60.0)("across/1", [2, 5, 7])
    made = group._backend
    assert (made.made_with, made.watchdog) == ((1, 3, 660.0), "0")
    assert made.connected == [GPU_3]
    assert os.environ.get(WATCHDOG) == before


def test_who_cannot_connect_says_so(nccl: type[FakeNccl], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "fails", True)
    with pytest.raises(TransportError, match="rank 2 could not start NCCL: no route"):
        nccl_groups(GPU_3, STORE, 2, 60.0)("across/1", [2, 5])


def test_groups_end_at_once() -> None:
    """One that waits for the end of another, as NCCL's may, is not waited for before it."""
    other = threading.Event()
    ended = []

    class Waiting:
        def close(self) -> None:
            ended.append(other.wait(5))

    class Ending:
        def close(self) -> None:
            other.set()

    close_all([Waiting(), Ending()])  # type: ignore[list-item]
    assert ended == [True]
