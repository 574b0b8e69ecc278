"""How ranks find each other: who is let in, who is named, and who shares memory."""

import os
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.algorithms import halving_doubling_schedule, hierarchical_schedule, ring_schedule
from ddp.errors import PeerTimeout, TransportError
from ddp.executor import ScheduledCollective
from ddp.fabric import Fabric
from ddp.nic import own_address
from ddp.replay import replay
from ddp.transport import meeting, trial
from ddp.transport.meeting import HELLO, Meeting, Peer
from ddp.transport.sockets import SocketTransport
from tests.ddp.conftest import run_threads
from tests.ddp.samples import random_buffers


class Board:
    """What all ranks of a meeting say, as a store would have it. `present`: so many come."""

    def __init__(self, num_ranks: int, present: int | None = None) -> None:
        self._said: list[dict[str, Any]] = [{} for _ in range(num_ranks)]
        self._all_there = threading.Barrier(present or num_ranks)

    def exchange(self, rank: int) -> Callable[[str, dict[str, object]], list[dict[str, Any]]]:
        def say(_topic: str, facts: dict[str, object]) -> list[dict[str, Any]]:
            self._said[rank] = facts
            self._all_there.wait(10)
            return self._said

        return say


def meet(
    node_of: tuple[int, ...], *, shares: bool = True, timeout_s: float = 10.0
) -> list[dict[int, Peer]]:
    """The peers that each rank finds; all ranks are threads of this process."""
    fabric, board = Fabric(node_of), Board(len(node_of))

    def body(rank: int) -> dict[int, Peer]:
        address = f"127.0.0.{rank + 1}"
        return Meeting(rank, fabric, board.exchange(rank), address, timeout_s, shares).connect()

    return run_threads(len(node_of), body)


def close(found: list[dict[int, Peer]]) -> None:
    for peers in found:
        for peer in peers.values():
            peer.sock.close()


def who_shares(found: list[dict[int, Peer]]) -> list[list[int]]:
    return [sorted(rank for rank, peer in peers.items() if peer.shares_memory) for peers in found]


def test_memory_is_shared_inside_nodes_and_never_between_them() -> None:
    """Though all of these ranks run on one kernel, and could."""
    found = meet((0, 1, 0, 1))
    assert who_shares(found) == [[2], [3], [0], [1]]
    families = {rank: peer.sock.family for rank, peer in found[0].items()}
    assert families == {1: socket.AF_INET, 2: socket.AF_UNIX, 3: socket.AF_INET}
    close(found)


def test_sockets_between_nodes_leave_from_the_ranks_own_address() -> None:
    found = meet((0, 1))
    assert found[1][0].sock.getsockname()[0] == "127.0.0.2"
    assert found[1][0].sock.getpeername()[0] == "127.0.0.1"
    close(found)


def test_nothing_is_shared_where_that_is_not_wanted() -> None:
    found = meet((0, 0, 0), shares=False)
    assert who_shares(found) == [[], [], []]
    assert {peer.sock.family for peer in found[0].values()} == {socket.AF_INET}
    close(found)


@pytest.mark.parametrize("broken", ["shows other memory", "answers elsewhere"])
def test_what_only_looks_shared_is_not(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """As where a descriptor arrives and stands for a copy: both ends then take the socket."""
    if broken == "answers elsewhere":
        answers = iter(range(99))
        monkeypatch.setattr(trial, "_turned", lambda nonce: bytes([next(answers)]) * len(nonce))
    else:

        def show(piece: Any, sock: socket.socket) -> None:
            fd = os.memfd_create("copy")
            os.ftruncate(fd, 4096)
            socket.send_fds(sock, [piece._nonce], [fd])
            os.close(fd)
            os.close(piece._fd)

        monkeypatch.setattr(trial._Piece, "show", show)
    found = meet((0, 0))
    assert who_shares(found) == [[], []]
    close(found)


def test_a_peer_that_the_kernel_does_not_know_is_reached_over_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with nodes that were given one name by mistake."""

    def nowhere(_self: Meeting, rank: int, facts: Any) -> None:
        del rank, facts

    monkeypatch.setattr(Meeting, "_connect_local", nowhere)
    found = meet((0, 0, 0))
    assert who_shares(found) == [[], [], []]
    close(found)


def test_strangers_are_not_let_in() -> None:
    """Neither one that says nothing, nor one with another secret or a rank that has come."""
    fabric, board = Fabric((0, 1)), Board(2)

    def say(rank: int) -> Callable[[str, dict[str, object]], list[dict[str, Any]]]:
        def exchange(topic: str, facts: dict[str, object]) -> list[dict[str, Any]]:
            everybody = board.exchange(rank)(topic, facts)
            if rank:
                for words in (b"", b"GET / HTTP/1.0\r\n\r\n", HELLO.pack(bytes(16), 1)):
                    with socket.create_connection(everybody[0]["tcp"]) as stranger:
                        stranger.sendall(words)
            return everybody

        return exchange

    def body(rank: int) -> dict[int, Peer]:
        return Meeting(rank, fabric, say(rank), "127.0.0.1", 10.0, shares_memory=True).connect()

    found = run_threads(2, body)
    found[1][0].sock.sendall(b"it is me")
    assert found[0][1].sock.recv(20) == b"it is me"
    close(found)


def test_who_does_not_come_is_named() -> None:
    fabric, board = Fabric((0, 1, 2, 3)), Board(4, present=1)
    with pytest.raises(
        PeerTimeout, match=r"rank 0 waited 0\.2 s for connections from rank 1, 2, 3"
    ):
        Meeting(0, fabric, board.exchange(0), "127.0.0.1", 0.2, shares_memory=True).connect()


def test_an_address_that_nobody_answers_at_is_named_with_the_fix() -> None:
    fabric = Fabric((0, 1))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    def exchange(_topic: str, facts: dict[str, object]) -> list[dict[str, Any]]:
        return [{**facts, "tcp": ["127.0.0.1", port]}, facts]

    words = rf"to rank 0 at 127\.0\.0\.1, port {port}: .*refused"
    with pytest.raises(TransportError, match=words) as caught:
        Meeting(1, fabric, exchange, "127.0.0.1", 1.0, shares_memory=True).connect()
    assert "set GLOO_SOCKET_IFNAME" in str(caught.value)


def test_an_address_of_another_machine_is_refused() -> None:
    board = Board(1)
    with pytest.raises(TransportError, match=r"no socket at 192\.0\.2\.1: Cannot assign"):
        Meeting(0, Fabric((0,)), board.exchange(0), "192.0.2.1", 1.0, shares_memory=True).connect()


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("numel", [1, 7, 997, 60_001])
@pytest.mark.parametrize("segments", [1, 3])
def test_schedules_give_the_bytes_of_the_replay(shares: bool, numel: int, segments: int) -> None:
    fabric = Fabric((0, 1, 1, 0))
    found = meet(fabric.node_of, shares=shares)
    ends = [SocketTransport(peers) for peers in found]
    schedules = [
        ring_schedule(range(4)),
        hierarchical_schedule(fabric.groups),
        halving_doubling_schedule(range(4)),
    ]
    inputs = random_buffers(4, numel)

    def body(rank: int) -> list[Tensor]:
        (row,) = ends[rank].allocate([(numel, torch.float32)])
        results = []
        for schedule in schedules:
            collective = ScheduledCollective(schedule, rank, fabric, ends[rank], 20)
            for _ in range(2):  # the second one goes through what was bound for the first
                row.copy_(inputs[rank])
                collective.all_reduce(row, segments, 0)
            results.append(row.clone())
        return results

    try:
        results = run_threads(4, body)
    finally:
        for end in ends:
            end.close()
    for index, schedule in enumerate(schedules):
        expected = replay(schedule, inputs, segments)
        assert all(torch.equal(results[rank][index], expected[rank]) for rank in range(4))


def test_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_address({"GLOO_SOCKET_IFNAME": "lo"}, "203.0.113.1") == "127.0.0.1"
    assert own_address({}, "127.0.0.1") == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert own_address({}, None) == "127.0.0.1"
    assert own_address({"GLOO_SOCKET_IFNAME": "nosuch0"}, "localhost") == "127.0.0.1"


def test_a_meeting_of_one_is_short() -> None:
    start = monotonic()
    assert meet((0,)) == [{}]
    assert monotonic() - start < meeting.SECRET_BYTES  # seconds, of a limit of ten: nobody waits
