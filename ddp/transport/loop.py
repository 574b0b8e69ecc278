"""One thread's wait for many sockets: whatever arrives is dealt with while it waits for one thing.

Owns the epoll object and its end. Whoever waits turns the loop; nobody else does, so nothing moves
while a rank computes but what the kernel has in its buffers.
"""

import os
import select
import threading
from time import monotonic
from typing import Protocol

from ddp.errors import PeerTimeout, TransportError

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
CLOSED = "the connections to all peers are closed"


class Handler(Protocol):
    """One socket. `fault`: why it can carry nothing any more."""

    fault: str | None

    def fileno(self) -> int: ...

    def handle(self, events: int) -> None:
        """Read or write without blocking; what goes wrong becomes `fault`."""


class Operation(Protocol):
    """Something that is waited for."""

    done: bool


class Loop:
    """For one thread at a time; `close` may come from another one."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}  # those that are watched
        self._turning = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, READ)
        self.closed = False

    def watch(self, handler: Handler, events: int) -> None:
        """From now on these events of a handler count; of one without any not even its end."""
        if self.closed:
            return
        fileno = handler.fileno()
        if not events:
            if self._handlers.pop(fileno, None):
                self._epoll.unregister(fileno)
        elif fileno in self._handlers:
            self._epoll.modify(fileno, events)
        else:
            self._handlers[fileno] = handler
            self._epoll.register(fileno, events)

    def run(self, operation: Operation, handler: Handler, timeout_s: float) -> None:
        """Turn until the operation of `handler` is done. Raises PeerTimeout, TransportError."""
        deadline = monotonic() + timeout_s
        with self._turning:
            while not operation.done:
                if self.closed:
                    raise TransportError(CLOSED)
                if handler.fault is not None:
                    raise TransportError(handler.fault)
                left_s = deadline - monotonic()
                if left_s <= 0:
                    raise PeerTimeout(f"nothing for {timeout_s:g} s")
                for fileno, events in self._epoll.poll(left_s):
                    if (ready := self._handlers.get(fileno)) is not None:
                        ready.handle(events)

    def stop(self) -> None:
        """Whoever waits raises. A second call does nothing."""
        if not self.closed:
            self.closed = True
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """After `stop`, once nobody waits any more."""
        with self._turning:
            self._handlers.clear()
            self._epoll.close()
            os.close(self._bell)
