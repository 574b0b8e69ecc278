"""Stop signals: Ctrl-C, SIGTERM and SIGHUP end a command in order, and a run as a request."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from jobs.errors import RunStopped

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A stop signal ends this command; its text is the signal's name."""


@contextmanager
def raising_stop_signals() -> Iterator[None]:
    """Inside, the first stop signal raises Stopped; more of them do not hurry the ending.

    Only signals that would have ended this process: `nohup` and callers keep their ways.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    ending = (signal.SIG_DFL, signal.default_int_handler)
    before = {each: how for each in STOP_SIGNALS if (how := signal.getsignal(each)) in ending}
    come: list[int] = []

    def raise_first(number: int, _frame: FrameType | None) -> None:
        come.append(number)
        if len(come) == 1:
            raise Stopped(signal.Signals(number).name)

    for number in before:
        signal.signal(number, raise_first)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def who_stopped(error: BaseException) -> str:
    """`you` for Ctrl-C, else the name of the signal, also where Stopped is only the cause."""
    stopped = error if isinstance(error, Stopped) else error.__cause__
    return _who(str(stopped) if isinstance(stopped, Stopped) else "SIGINT")


def _who(name: str) -> str:
    return "you" if name == "SIGINT" else name


@contextmanager
def undisturbed() -> Iterator[None]:
    """An impatient second stop signal does not cut off what is told about the first."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Inside, stop signals wait; processes that are started there inherit that.

    Blocking alone would not do: another thread of ours hears a signal for the main one.
    """
    come: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    main = threading.current_thread() is threading.main_thread()
    heard = [each for each in STOP_SIGNALS if main and signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, lambda number, _: come.append(number)) for each in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if come:
            signal.raise_signal(come[0])


class StopRequest:
    """A stop signal that came, and whom to tell about it."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._listener: Callable[[str], None] | None = None

    @property
    def error(self) -> RunStopped | None:
        """What a run ends with that was stopped; None where no signal came."""
        return RunStopped(f"stopped by {_who(self._name)}") if self._name else None

    def tell(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the signal's name when one comes, or at once if one came."""
        self._listener = listener
        if self._name:
            listener(self._name)

    def take(self, number: int, _frame: FrameType | None) -> None:
        """A signal handler: the first signal counts, more of them do not hurry the ending."""
        if self._name is None:
            self._name = signal.Signals(number).name
            if self._listener:
                self._listener(self._name)


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Turns Ctrl-C, SIGTERM and SIGHUP into a request, so that a run is always concluded."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # signals are the main thread's
        return
    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, request.take) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
