"""Stop signals as a request: Ctrl-C, SIGTERM and SIGHUP end a run in order, not in the middle."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """A stop signal that came, and whom to tell about it."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._listener: Callable[[str], None] | None = None

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
