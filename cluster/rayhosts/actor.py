"""The actor on one node: starts programs there and passes on what goes in and out of them.

Sent to the node as it is here (by value), so that nothing of ours need be installed there.
Standard library only. Bytes travel as latin-1 text, so that whoever relays them needs no other
encoding. A program's standard input is a pipe that ends when this process does, however it ends.
"""

import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

MOST_BYTES = 45_000
"""Of one stream in one answer: what both hold together Ray sends without its object store."""
PAUSE_S = 0.2
"""Between two answers of a program that keeps talking: each call costs milliseconds of CPU."""
WRITE_POLL_MS = 100
END_S = 3.0
ALONE_S = 20.0
"""So long without a beat of the driver's, and it is gone, or cannot be reached any more."""


class Program:
    """One program that runs here, or has ended and was not read to its end."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, start_new_session=True
        )
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        self._input, self._outputs = process.stdin.fileno(), [process.stdout, process.stderr]
        self._ended = os.pidfd_open(process.pid)
        self._input_lock, self._input_ended = threading.Lock(), False
        self._last_s = 0.0
        for file in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(file.fileno(), False)

    def read(self) -> tuple[str, str, int | None]:
        """Waits until there is something: output, errors, and the exit status after the last."""
        self._wait(0, max(0.0, self._last_s + PAUSE_S - time.monotonic()))
        self._wait(select.POLLIN, None)
        status = self._process.poll()
        out, err = [self._taken(file) for file in self._outputs]
        full = len(out) == MOST_BYTES or len(err) == MOST_BYTES
        self._last_s = 0.0 if full else time.monotonic()
        if status is not None and not full:
            self._close()
            return out, err, status
        return out, err, None

    def _wait(self, events: int, timeout_s: float | None) -> None:
        """For output, where `events` asks for it, or for the program's end."""
        poller = select.poll()
        poller.register(self._ended, select.POLLIN)
        for file in self._outputs:
            if events and not file.closed:
                poller.register(file.fileno(), events)
        poller.poll(None if timeout_s is None else timeout_s * 1000)

    def _taken(self, file: IO[bytes]) -> str:
        data = b""
        with suppress(BlockingIOError):
            while not file.closed and len(data) < MOST_BYTES:
                more = os.read(file.fileno(), MOST_BYTES - len(data))
                data += more
                if not more:
                    file.close()
        return data.decode("latin-1")

    def write(self, text: str) -> bool:
        """Returns when the program's pipe has taken all; False where its input was ended."""
        data = text.encode("latin-1")
        poller = select.poll()
        poller.register(self._input, select.POLLOUT)
        while data:
            ready = poller.poll(WRITE_POLL_MS)
            with self._input_lock:  # once closed, its number may be another file's
                if self._input_ended:
                    return False
                if ready:
                    data = data[os.write(self._input, data) :]
        return True

    def end_input(self) -> None:
        assert self._process.stdin
        with self._input_lock, suppress(OSError):
            self._input_ended = True
            self._process.stdin.close()

    def wait(self, timeout_s: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, timeout_s))

    def _close(self) -> None:
        self.end_input()
        os.close(self._ended)
        for file in self._outputs:
            file.close()


class Host:
    """What Ray runs on each node; every method may be called while others wait."""

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}
        self._folder: str | None = None
        self._line: socket.socket | None = None
        self._beat_s = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._end_alone, daemon=True).start()

    def line(self, address: str) -> int:
        """The port of a connection that says nothing, and that ends as this process does."""
        listener = socket.create_server((address, 0))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        port: int = listener.getsockname()[1]
        return port

    def _accept(self, listener: socket.socket) -> None:
        with listener, suppress(OSError):
            self._line = listener.accept()[0]

    def beat(self) -> None:
        """The driver is there."""
        self._beat_s = time.monotonic()

    def _end_alone(self) -> None:
        while not self._over.wait(1):
            if time.monotonic() > self._beat_s + ALONE_S:
                self.end()
                os._exit(1)

    def facts(self, source: str) -> str:
        """What the text of cluster.rayhosts.facts prints here."""
        argv = [sys.executable, "-c", source]
        done = subprocess.run(argv, env=self._environment({}), capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace").strip()[-500:])
        return done.stdout.decode()

    def use(self, folder: str) -> None:
        """Programs import this project's packages from here."""
        self._folder = folder

    def start(self, key: str, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        """Starts a program. One that cannot be started is one that says so, and has ended."""
        command = [sys.executable if argv[0] == "python" else argv[0], *argv[1:]]
        try:
            self._programs[key] = Program(command, self._environment(env), cwd)
        except OSError as exc:
            words = f"{exc.filename or command[0]}: {exc.strerror}"
            failing = ["sh", "-c", 'echo "$1" >&2; exit 127', "sh", words]
            self._programs[key] = Program(failing, dict(os.environ), "/")

    def read(self, key: str) -> tuple[str, str, int | None]:
        out, err, status = self._programs[key].read()
        if status is not None:
            del self._programs[key]
        return out, err, status

    def write(self, key: str, text: str) -> bool:
        """False where the program does not read any more."""
        try:
            return self._programs[key].write(text)
        except (KeyError, OSError):
            return False

    def end_input(self, key: str) -> None:
        if program := self._programs.get(key):
            program.end_input()

    def sees(self, path: str, writable: bool) -> str | None:
        """What keeps programs here from a file or folder; None where nothing does."""
        if not Path(path).exists():
            return "is not there"
        return "cannot be written" if writable and not os.access(path, os.W_OK) else None

    def end(self) -> None:
        """Ends the input of all programs, and waits a while for them to end; nothing comes after
        it, so that the driver's beat is not waited for any more."""
        self._over.set()
        deadline = time.monotonic() + END_S
        for program in list(self._programs.values()):
            program.end_input()
        for program in list(self._programs.values()):
            program.wait(deadline - time.monotonic())

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """This process's own, without what Ray adds for its workers' Python alone."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}
        paths = [self._folder, own.get("PYTHONPATH")]
        own["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        own.setdefault("TMPDIR", tempfile.gettempdir())
        return {**own, "PYTHONSAFEPATH": "1", **env}
