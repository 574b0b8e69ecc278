"""The processes below this one: adopting them, and killing all of them. Linux, standard library."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_TIMEOUT_S = 5.0


def adopt_orphans() -> None:
    """What loses its parent below this process becomes its child, so that it can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """The kernel sends this signal when the parent ends, also if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def kill_descendants(root: int) -> None:
    """Kills every process below `root`, again until none is left that runs."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (found := descendants(root)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def descendants(root: int) -> list[int]:
    """Processes below `root` that still run (no zombies), parents first."""
    children: dict[int, list[int]] = {}
    running: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
                if fields[0] not in "ZX":
                    running.add(int(entry.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        queue += below
        found += [pid for pid in below if pid in running]
    return found
