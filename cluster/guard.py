"""A small process above an agent, so that what the agent started ends however the agent ends.

The agent kills its ranks and what they started. Where it cannot, because it was killed or stopped,
its guard does; where the guard is killed, the agent is told and ends in order. Linux, standard
library only.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from cluster.descendants import adopt_orphans, end_with_parent, kill_descendants

GRACE_S = 2.0
"""How long the agent has for ending by itself once its input has ended."""
TOLD_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def guarded(work: Callable[[], None]) -> None:
    """Runs `work` in a child of this process, which then ends as the child did."""
    guard = os.getpid()
    adopt_orphans()
    child = os.fork()
    if child == 0:
        for number in TOLD_TO_END:
            signal.signal(number, _end_in_order)
        end_with_parent(guard, signal.SIGTERM)
        work()
        return
    signal.signal(signal.SIGCHLD, lambda *_: _tell_of_stops(child))
    _await_end(child)
    kill_descendants(guard)
    _end_like(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _await_end(child: int) -> None:
    """Returns when the child has ended, or should have: its input did, and it did not follow."""
    handle = os.pidfd_open(child)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(0, 0)  # hang-up is always reported; what there is to read is the child's
    if handle not in dict(poller.poll()):
        poller.unregister(0)
        poller.poll(GRACE_S * 1000)


def _tell_of_stops(child: int) -> None:
    """Says that the agent was stopped, or goes on, as an event on standard error.

    It cannot say so itself, and its own output may end in the middle of a line.
    """
    with suppress(OSError):  # it has ended, or nobody reads any more
        while seen := os.waitid(os.P_PID, child, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
            event = "stopped" if seen.si_code == os.CLD_STOPPED else "continued"
            os.write(2, json.dumps({"event": event}).encode() + b"\n")


def _end_in_order(signum: int, frame: object) -> None:
    """The agent was told to end, or its guard is gone."""
    del frame
    kill_descendants(os.getpid())
    _end_like(-signum)


def _end_like(code: int) -> None:
    """Ends this process with an exit status, or by a signal (negative)."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.stdout.flush()
    os._exit(code & 0xFF)
