"""What a forked child does until, and after, it is a rank. Standard library only."""

import contextlib
import importlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from cluster.descendants import end_with_parent

EVENTS_FD = "DDPLAB_EVENTS_FD"
"""Environment variable: where a rank writes JSON lines for the launcher."""
AGENTS_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What the agent handles; a rank is simply ended by them, and the agent tells which it was."""


@dataclass(frozen=True)
class RankStart:
    """One rank as the launcher asks for it."""

    rank: int
    local_rank: int
    env: Mapping[str, str]
    argument: Mapping[str, Any]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RankStart":
        return cls(int(data["rank"]), int(data["local_rank"]), data["env"], data["argument"])


def become_rank(
    start: RankStart, target: str, parent: int, log_fd: int, events_fd: int, foreign: Sequence[int]
) -> NoReturn:
    """Runs `target` (`package.module:function`) with the rank's argument, and ends the process.

    `foreign` are the agent's own file descriptors. SystemExit gives the status; any other
    exception is written to the log and gives 1.
    """
    status = 1
    try:
        os.setpgid(0, 0)
        end_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for number in AGENTS_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _take_over_files(log_fd, foreign)
        os.environ.update(start.env)
        os.environ[EVENTS_FD] = str(events_fd)
        random.seed()
        _function(target)(dict(start.argument))
        status = 0
    except SystemExit as exc:
        status = _status_of(exc)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _take_over_files(log_fd: int, foreign: Sequence[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    for fd in (nothing, log_fd, *foreign):
        os.close(fd)
    # new streams: the agent's own may have been made for a file, and remember a place in it
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _function(target: str) -> Callable[[dict[str, Any]], object]:
    module, _, name = target.partition(":")
    function: Callable[[dict[str, Any]], object] = getattr(importlib.import_module(module), name)
    return function


def _status_of(exc: SystemExit) -> int:
    if exc.code is None:
        return 0
    if isinstance(exc.code, int):
        return exc.code & 0xFF
    print(exc.code, file=sys.stderr)  # noqa: T201 - as Python itself ends
    return 1
