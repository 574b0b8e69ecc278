"""Memory that the ranks of a node share: lent, written into, handed back, and gone with its end."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp.errors import PeerTimeout, TransportError
from ddp.transport.sockets import SocketTransport
from tests.ddp.ends import LARGE, TIMEOUT_S, filled, together, two_ends


def test_a_loan_is_the_peers_own_memory_until_it_ends() -> None:
    with two_ends(shares=True) as (one, other):
        row = filled(one, torch.ones(LARGE))
        pending, loan = one.send(row, 1, 0), other.borrow(torch.zeros(LARGE), 0, 0)
        data = loan.wait(TIMEOUT_S)
        row[5] = 42.0
        assert data is not None
        assert data[5].item() == 42.0
        with pytest.raises(PeerTimeout):
            pending.wait(0.05)
        loan.end()
        pending.wait(TIMEOUT_S)


@pytest.mark.parametrize("expect", [SocketTransport.recv, SocketTransport.borrow])
def test_what_was_written_into_a_loan_and_handed_back_has_landed(expect: Any) -> None:
    with two_ends(shares=True) as (one, other):
        row, total = filled(one, torch.ones(LARGE)), filled(other, torch.full((LARGE,), 5.0))
        pending, loan = one.send(row, 1, 0), other.borrow(total, 0, 0)
        data = loan.wait(TIMEOUT_S)
        assert loan.is_the_peers
        assert data is not None
        data.copy_(total)
        sent, coming = loan.hand_back(total, 7), expect(one, row, 1, 7)
        for each in (sent, pending):
            each.wait(TIMEOUT_S)
        assert coming.wait(TIMEOUT_S) is None
        assert row.tolist() == [5.0] * LARGE


def test_what_came_through_the_socket_is_nobody_elses() -> None:
    for shares, numel in ((False, LARGE), (True, 3)):
        with two_ends(shares=shares) as (one, other):
            loan = other.borrow(torch.zeros(numel), 0, 0)
            one.send(filled(one, torch.ones(numel)), 1, 0)
            assert loan.wait(TIMEOUT_S) is not None
            assert not loan.is_the_peers
            loan.hand_back(torch.full((numel,), 5.0), 7)
            back = torch.zeros(numel)
            one.recv(back, 1, 7).wait(TIMEOUT_S)
            assert back.tolist() == [5.0] * numel


def test_a_small_message_inside_a_node_needs_no_answer() -> None:
    with two_ends(shares=True) as (one, _):
        one.send(filled(one, torch.ones(3)), 1, 0).wait(TIMEOUT_S)


def test_memory_that_is_not_shared_is_sent_through_the_socket() -> None:
    sent = torch.arange(float(LARGE))
    with two_ends(shares=True) as (one, other):
        target = torch.zeros(LARGE)
        together(
            lambda: one.send(sent, 1, 0).wait(TIMEOUT_S),
            lambda: other.recv(target, 0, 0).wait(TIMEOUT_S),
        )
    assert torch.equal(target, sent)


def open_memory() -> list[str]:
    """The shared memory that this process holds, mapped or open."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    opened = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return [each for each in mapped + opened if "/memfd:ddp (" in each]


def test_shared_memory_ends_with_its_tensors() -> None:
    """Also in the peer, which is told with the next memory that it is shown."""
    with two_ends(shares=True) as (one, other):
        target = torch.zeros(LARGE)
        for value in range(3):
            row = filled(one, torch.full((LARGE,), float(value)))
            together(
                lambda row=row: one.send(row, 1, 0).wait(TIMEOUT_S),  # type: ignore[misc]
                lambda: other.recv(target, 0, 0).wait(TIMEOUT_S),
            )
            assert target[0].item() == value
            del row
            gc.collect()
        assert len([line for line in open_memory() if " rw-s " in line]) == 1  # the peer's last
    gc.collect()
    assert open_memory() == []


def test_too_little_shared_memory_says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with two_ends(shares=True) as (one, _), pytest.raises(TransportError) as caught:
        one.allocate([(2_500_000, torch.float32)])
    assert "10.0 MB of shared memory for buckets: No space left on device" in str(caught.value)
    assert "shared_memory=False" in str(caught.value)
