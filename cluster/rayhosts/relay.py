"""The launcher's side of the driver process: orders out, answers in, its end told to all waiting.

Knows nothing of what is ordered.
"""

import itertools
import json
import signal
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import IO, Any

from cluster.nodes import NodeProcess

END_S = 12.0
KEPT_LINES = 20
SIGNALLED = 128
"""Above it, an exit status tells the signal that ended a program that a client waited for."""


class DriverError(Exception):
    """An order was refused (`kind` says why), or the driver has ended (`ended`)."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class Relay:
    """One driver process; entering waits for nothing, leaving ends the driver and what it holds."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._ending: DriverError | None = None
        self._errors: deque[str] = deque(maxlen=KEPT_LINES)
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._keep_errors, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, op: str, timeout_s: float | None = None, **fields: Any) -> Any:
        """The answer to one order. Raises DriverError."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._ending:
                raise self._ending
            number = next(self._numbers)
            self._waiting[number] = answer
            line = json.dumps({"id": number, "op": op, **fields}).encode() + b"\n"
            assert self._process.stdin
            with suppress(OSError, ValueError):  # its end fails all that wait
                self._process.stdin.write(line)
                self._process.stdin.flush()
        try:
            return answer.result(timeout_s)
        except NoAnswer:
            words = f"{op} was not answered within {timeout_s:g} s"
            raise DriverError("late", words) from None

    def close(self) -> None:
        """Ends the driver, which ends all it started; kills it where it does not follow."""
        pipe = self._process.stdin
        with suppress(OSError, ValueError):
            if pipe:
                pipe.close()
        with suppress(TimeoutExpired):
            self._process.wait(END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_S)
        for thread in self._threads:
            thread.join(timeout=1)
        for output in (self._process.stdout, self._process.stderr):
            with suppress(OSError, ValueError):
                if output:
                    output.close()

    def _read(self) -> None:
        for line in _lines(self._process.stdout):
            answer = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(answer["id"], None)
            if waiting is None:
                continue
            if error := answer.get("error"):
                waiting.set_exception(DriverError(error["kind"], error["words"]))
            else:
                waiting.set_result(answer["result"])
        self._threads[0].join(timeout=1)
        with suppress(TimeoutExpired):
            self._process.wait(1)
        self._fail()

    def _fail(self) -> None:
        with self._lock:
            self._ending = DriverError("ended", self._how_it_ended())
            waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.set_exception(self._ending)

    def _how_it_ended(self) -> str:
        status = self._process.poll()
        if status is None:
            return "the driver of Ray has closed its output"
        number = -status if status < 0 else status - SIGNALLED
        if number in set(signal.Signals):
            return f"the driver of Ray was killed by {signal.Signals(number).name}"
        last = [line for line in self._errors if line.strip()][-1:]
        return ": ".join([f"the driver of Ray ended with status {status}", *last])

    def _keep_errors(self) -> None:
        for line in _lines(self._process.stderr):
            self._errors.append(line.decode(errors="replace").rstrip("\n"))


def _lines(pipe: IO[bytes] | None) -> Any:
    with suppress(OSError, ValueError):  # closed under us
        yield from pipe or ()
