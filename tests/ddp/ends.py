"""Two ranks joined by our own sockets, in this process; and bodies that run at the same time."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from ddp.transport.meeting import Peer
from ddp.transport.sockets import SocketTransport

TIMEOUT_S = 10.0
LARGE = 300_001  # elements: more than a socket holds, and no round number


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


@contextmanager
def two_ends(*, shares: bool) -> Iterator[tuple[SocketTransport, SocketTransport]]:
    """Ranks 0 and 1: over a local socket with shared memory, else over TCP."""
    one, other = socket.socketpair() if shares else tcp_pair()
    ends = SocketTransport({1: Peer(one, shares)}), SocketTransport({0: Peer(other, shares)})
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def together(*bodies: Callable[[], None]) -> None:
    """All of them at once, each in a thread; raises what the first of them raised."""
    errors: list[BaseException] = []

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def filled(end: SocketTransport, values: Tensor) -> Tensor:
    (row,) = end.allocate([(values.numel(), values.dtype)])
    return row.copy_(values)
