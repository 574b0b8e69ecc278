"""Whether processes at the ends of local sockets share memory: each shows a piece to the other, who
answers in it. Owns those pieces, which are gone afterwards.
"""

import mmap
import os
import secrets
import socket
from collections.abc import Mapping
from time import monotonic

from ddp.errors import TransportError

NONCE_BYTES = 16
YES, NO = b"\x01", b"\x00"


def who_shares(socks: Mapping[int, socket.socket], deadline: float) -> set[int]:
    """The peers, by rank, that have the same memory as this process; all of them must call it.

    Raises TransportError where a peer has gone or says nothing.
    """
    own = {rank: _Piece() for rank in socks}
    silent = None
    try:
        for silent, sock in socks.items():
            sock.settimeout(max(deadline - monotonic(), 0.001))
            own[silent].show(sock)
        answered = {}
        for silent, sock in socks.items():
            answered[silent] = _answer(sock)
            sock.sendall(YES if answered[silent] else NO)
        agreed = {}
        for silent, sock in socks.items():
            agreed[silent] = _heard(sock) and own[silent].is_answered()
            sock.sendall(YES if agreed[silent] else NO)
        theirs = {}
        for silent, sock in socks.items():
            theirs[silent] = _heard(sock)
    except OSError as exc:
        raise TransportError(
            f"rank {silent}, on this node, did not say whether it shares memory: "
            f"{exc.strerror or exc}"
        ) from exc
    return {rank for rank in socks if answered[rank] and agreed[rank] and theirs[rank]}


class _Piece:
    """A page of this rank's. The answer to a nonce is the nonce with all bits turned."""

    def __init__(self) -> None:
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._fd = os.memfd_create("ddp-trial", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, mmap.PAGESIZE)
        self._memory = mmap.mmap(self._fd, mmap.PAGESIZE)
        self._memory[:NONCE_BYTES] = self._nonce

    def show(self, sock: socket.socket) -> None:
        socket.send_fds(sock, [self._nonce], [self._fd])
        os.close(self._fd)

    def is_answered(self) -> bool:
        answered: bool = self._memory[NONCE_BYTES : 2 * NONCE_BYTES] == _turned(self._nonce)
        return answered


def _answer(sock: socket.socket) -> bool:
    """Whether the peer's piece holds what the peer says; if so, it now holds the answer too."""
    nonce, fds, _, _ = socket.recv_fds(sock, NONCE_BYTES, 1)
    try:
        if len(nonce) < NONCE_BYTES or not fds:
            return False
        with mmap.mmap(fds[0], mmap.PAGESIZE) as memory:
            if memory[:NONCE_BYTES] != nonce:
                return False
            memory[NONCE_BYTES : 2 * NONCE_BYTES] = _turned(nonce)
            return True
    except (OSError, ValueError):  # no memory to map
        return False
    finally:
        for fd in fds:
            os.close(fd)


def _heard(sock: socket.socket) -> bool:
    said = sock.recv(1)
    if not said:
        raise ConnectionResetError(0, "it has closed the connection")
    return said == YES


def _turned(nonce: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in nonce)
