"""The transport of our own: TCP between nodes, shared memory inside them, one loop for all peers.

Owns which connection a message takes, and the memory that peers of the node read. Linux only: it
stands on epoll, memfd and descriptors that travel over local sockets.
"""

import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ddp.transport.connection import Connection
from ddp.transport.loop import Loop
from ddp.transport.meeting import Peer
from ddp.transport.operations import Borrowing, Receiving, Sending
from ddp.transport.scratch import Scratch, zeros
from ddp.transport.shared import SharedMemory

IS_SUPPORTED = sys.platform == "linux"


class SocketTransport:
    """Connections of one rank to all its peers. For one thread at a time, but for `close`."""

    def __init__(self, peers: Mapping[int, Peer]) -> None:
        self._loop = Loop()
        self._memory = SharedMemory()
        scratch = Scratch()
        self._connections = {
            rank: Connection(
                self._loop, peer.sock, scratch, self._memory if peer.shares_memory else None
            )
            for rank, peer in peers.items()
        }
        self.sharing = frozenset(rank for rank, peer in peers.items() if peer.shares_memory)

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return self._memory.allocate(rows) if self.sharing else zeros(rows)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Sending:
        return self._connections[peer].send(tensor, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Receiving:
        connection = self._connections[peer]
        receiving = Receiving(connection, tensor)
        connection.expect(receiving, tag)
        return receiving

    def borrow(self, like: Tensor, peer: int, tag: int) -> Borrowing:
        connection = self._connections[peer]
        borrowing = Borrowing(connection, like)
        connection.expect(borrowing, tag)
        return borrowing

    def close(self) -> None:
        """Peers notice at once. From any thread; a second call does nothing."""
        if self._loop.closed:
            return
        self._loop.stop()
        for connection in self._connections.values():
            connection.shut()
        self._loop.close()
        for connection in self._connections.values():
            connection.close()
        self._memory.close()
