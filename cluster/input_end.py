"""The end of standard input as an order to end at once, also while nobody reads it. Linux."""

import fcntl
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.descendants import kill_descendants


@contextmanager
def ending_with_input() -> Iterator[None]:
    """Inside, this process ends as its standard input does, also in the middle of an import.

    The kernel sends SIGIO when there is something to read and when the other end is closed.
    """
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    before = signal.signal(signal.SIGIO, _end_if_input_has_ended)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        _end_if_input_has_ended(signal.SIGIO, None)  # it may have ended before
        yield
    finally:
        fcntl.fcntl(0, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, before)


def _end_if_input_has_ended(signum: int, frame: object) -> None:
    del signum, frame
    poller = select.poll()
    poller.register(0, 0)  # hang-up is always reported, unread commands are not of interest
    if poller.poll(0):
        kill_descendants(os.getpid())
        os._exit(0)
