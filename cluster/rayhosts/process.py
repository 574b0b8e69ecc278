"""A program on a Ray node, seen from here as a process with three real pipes."""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from cluster.rayhosts.relay import DriverError

CHUNK_BYTES = 1 << 16
LOST = 1
"""The exit status of a program whose actor, driver or node has ended."""
KILLED = -9

Call = Callable[..., Any]


class RayProcess:
    """See cluster.nodes.NodeProcess. `call(method, *args)` asks the actor that runs the program."""

    def __init__(self, call: Call, key: str, lost: str, stderr: IO[bytes] | None) -> None:
        self._call, self._key, self._lost = call, key, lost
        self._status: int | None = None
        self._settled = threading.Condition()
        input_end, input_fd = os.pipe()
        output_fd, output_end = os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(input_fd, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(output_fd, "rb")
        self.stderr: IO[bytes] | None = None
        if stderr is None:
            errors_fd, errors_end = os.pipe()
            self.stderr = os.fdopen(errors_fd, "rb")
        else:
            errors_end = os.dup(stderr.fileno())
        for work, files in ((self._feed, [input_end]), (self._pump, [output_end, errors_end])):
            threading.Thread(target=work, args=files, daemon=True).start()

    @property
    def pid(self) -> int:
        """This process's own: the client of the program is a thread of it."""
        return os.getpid()

    def poll(self) -> int | None:
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._settled:
            while self._status is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired(self._key, timeout or 0.0)
                self._settled.wait(left)
        return self._status

    def kill(self) -> None:
        self._settle(KILLED)
        threading.Thread(target=self._end_input, daemon=True).start()

    def _end_input(self) -> None:
        with suppress(DriverError):
            self._call("end_input", self._key)

    def _feed(self, source: int) -> None:
        with suppress(DriverError):
            while data := os.read(source, CHUNK_BYTES):
                if not self._call("write", self._key, data.decode("latin-1")):
                    break
        os.close(source)
        self._end_input()

    def _pump(self, output: int, errors: int) -> None:
        status: int | None = None
        try:
            while status is None and self._status is None:
                out, err, status = self._call("read", self._key)
                _write(output, out.encode("latin-1"))
                _write(errors, err.encode("latin-1"))
        except DriverError as exc:
            _write(errors, f"{self._lost}: {exc}\n".encode())
            status = LOST
        os.close(output)
        os.close(errors)
        self._settle(LOST if status is None else status)

    def _settle(self, status: int) -> None:
        with self._settled:
            if self._status is None:
                self._status = status
            self._settled.notify_all()


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError):  # nobody reads it any more
        while data:
            data = data[os.write(fd, data) :]
