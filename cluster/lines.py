"""Lines in and out of pipes that never block. Standard library only."""

import os
from collections.abc import Callable

CHUNK_BYTES = 1 << 16


class LineReader:
    """One pipe cut into lines; `take` gets each without its end, cut at `limit` bytes."""

    def __init__(self, fd: int, limit: int, take: Callable[[bytes], None]) -> None:
        self.fd = fd
        self._limit = limit
        self._take = take
        self._rest = b""

    def read(self) -> bool:
        """Reads what is there; False once the pipe has ended."""
        try:
            data = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._limit or (self._rest and not data):
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line)
        return bool(data)


class Outbox:
    """Bytes on their way into a pipe; what the pipe does not take yet waits."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting = bytearray()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, data: bytes) -> None:
        """Adds, and sends what the pipe takes. Raises BrokenPipeError when nobody reads."""
        self._waiting += data
        self.send()

    def send(self) -> None:
        while self._waiting:
            try:
                del self._waiting[: os.write(self.fd, self._waiting)]
            except BlockingIOError:
                return
