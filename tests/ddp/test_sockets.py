"""Our own sockets between two ends: what is asked for comes, whole and where it belongs."""

import threading
from collections.abc import Sequence
from time import monotonic

import pytest
import torch
from torch import Tensor

from ddp.errors import PeerTimeout, TransportError
from ddp.transport.frames import DTYPES
from ddp.transport.loop import CLOSED
from tests.ddp.ends import LARGE, TIMEOUT_S, filled, together, two_ends

SHARES = (False, True)


def values_of(dtype: torch.dtype, numel: int) -> Tensor:
    whole = torch.arange(numel) % 97 + 1
    return whole.to(dtype)


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [1, 5, 4096, LARGE])
def test_every_dtype_and_length_arrives(shares: bool, dtype: torch.dtype, numel: int) -> None:
    sent = values_of(dtype, numel)
    with two_ends(shares=shares) as (one, other):
        source, target = filled(one, sent), torch.zeros(numel, dtype=dtype)
        borrowed: list[Tensor] = []

        def send() -> None:
            for tag in (7, 8):
                one.send(source, 1, tag).wait(TIMEOUT_S)

        def receive() -> None:
            other.recv(target, 0, 7).wait(TIMEOUT_S)
            loan = other.borrow(target, 0, 8)
            data = loan.wait(TIMEOUT_S)
            assert data is not None
            borrowed.append(data.clone())
            loan.end()

        together(send, receive)
    assert torch.equal(target, sent)
    assert torch.equal(borrowed[0], sent)


@pytest.mark.parametrize("shares", SHARES)
def test_a_part_of_a_row_is_sent_from_where_it_is(shares: bool) -> None:
    with two_ends(shares=shares) as (one, other):
        row = filled(one, torch.arange(2.0 * LARGE))
        target = torch.zeros(LARGE)
        together(
            lambda: one.send(row[17 : 17 + LARGE], 1, 0).wait(TIMEOUT_S),
            lambda: other.recv(target, 0, 0).wait(TIMEOUT_S),
        )
    assert torch.equal(target, torch.arange(2.0 * LARGE)[17 : 17 + LARGE])


@pytest.mark.parametrize("shares", SHARES)
def test_receives_complete_in_any_order(shares: bool) -> None:
    with two_ends(shares=shares) as (one, other):
        rows = [filled(one, torch.full((LARGE,), float(tag))) for tag in range(4)]
        targets = [torch.zeros(LARGE) for _ in rows]

        def send() -> None:
            for pending in [one.send(row, 1, tag) for tag, row in enumerate(rows)]:
                pending.wait(TIMEOUT_S)

        def receive() -> None:
            receives = [other.recv(target, 0, tag) for tag, target in enumerate(targets)]
            for pending in reversed(receives):
                pending.wait(TIMEOUT_S)

        together(send, receive)
    assert [target[0].item() for target in targets] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("shares", SHARES)
def test_messages_of_one_tag_keep_their_order(shares: bool) -> None:
    with two_ends(shares=shares) as (one, other):
        rows = [filled(one, torch.full((size,), float(size))) for size in (3, LARGE, 2)]
        targets = [torch.zeros(row.numel()) for row in rows]

        def send() -> None:
            for pending in [one.send(row, 1, 5) for row in rows]:
                pending.wait(TIMEOUT_S)

        def receive() -> None:
            for pending in [other.recv(target, 0, 5) for target in targets]:
                pending.wait(TIMEOUT_S)

        together(send, receive)
    assert [target[-1].item() for target in targets] == [3.0, float(LARGE), 2.0]


@pytest.mark.parametrize("shares", SHARES)
def test_what_nobody_asked_for_stays_in_the_socket(shares: bool) -> None:
    """It is not kept in memory, and comes once it is asked for."""
    with two_ends(shares=shares) as (one, other):
        early, awaited = filled(one, torch.ones(3)), filled(one, torch.full((3,), 2.0))
        sends = [one.send(early, 1, 1), one.send(awaited, 1, 2)]
        target = torch.zeros(3)
        late = other.recv(target, 0, 2)
        with pytest.raises(PeerTimeout, match=r"nothing for 0\.05 s"):
            late.wait(0.05)
        first = torch.zeros(3)
        other.recv(first, 0, 1).wait(TIMEOUT_S)
        late.wait(TIMEOUT_S)
        for pending in sends:
            pending.wait(TIMEOUT_S)
    assert (first.tolist(), target.tolist()) == ([1.0] * 3, [2.0] * 3)


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize(
    ("sent", "expected", "words"),
    [
        (torch.ones(4), torch.ones(5), r"16 bytes of torch.float32, where 20 of torch.float32"),
        (torch.ones(4), torch.ones(4, dtype=torch.int32), r"where 16 of torch.int32 were expected"),
        (torch.ones(LARGE), torch.ones(1), r"1,200,004 bytes of torch.float32, where 4 of"),
    ],
)
def test_another_length_or_dtype_is_named(
    shares: bool, sent: Tensor, expected: Tensor, words: str
) -> None:
    with two_ends(shares=shares) as (one, other):
        one.send(filled(one, sent), 1, 0)
        with pytest.raises(TransportError, match=words):
            other.recv(expected, 0, 0).wait(TIMEOUT_S)


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("sends", [False, True])
def test_a_peer_that_has_gone_is_noticed_at_once(shares: bool, sends: bool) -> None:
    with two_ends(shares=shares) as (one, other):
        row = filled(one, torch.ones(20 * LARGE))
        one.close()
        start = monotonic()
        with pytest.raises(TransportError) as caught:
            if sends:
                other.send(torch.ones(20 * LARGE), 0, 0).wait(TIMEOUT_S)
            else:
                other.recv(row.clone(), 0, 0).wait(TIMEOUT_S)
        assert not isinstance(caught.value, PeerTimeout)
        assert monotonic() - start < TIMEOUT_S  # not by its limit: one-sided


@pytest.mark.parametrize("shares", SHARES)
def test_who_waits_is_told_that_the_connections_were_closed(shares: bool) -> None:
    with two_ends(shares=shares) as (one, _):
        timer = threading.Timer(0.1, one.close)
        timer.start()
        with pytest.raises(TransportError, match=f"{CLOSED}|has closed"):
            one.recv(torch.zeros(3), 1, 0).wait(TIMEOUT_S)
        timer.join()
        with pytest.raises(TransportError):
            one.recv(torch.zeros(3), 1, 0).wait(TIMEOUT_S)


@pytest.mark.parametrize("rows", [[(0, torch.float32)], [(3, torch.int8), (0, torch.float64)]])
def test_rows_may_be_empty(rows: Sequence[tuple[int, torch.dtype]]) -> None:
    with two_ends(shares=True) as (one, _):
        assert [(row.numel(), row.dtype) for row in one.allocate(rows)] == list(rows)
