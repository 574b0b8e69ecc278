"""All runs of one folder as they are now: which go on, which was the last, and what is broken.

Owns which runs are shown, and how closely. A run that cannot be read is left out, and said so;
whatever lies in its folder, the others stay. Only looks: writes nothing.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jobs.server.watched import RunView, WatchedFolder

MAX_ENDED_RUNS = 50
"""So many of the runs that have ended are shown, the newest: what is exposed stays bounded."""
_MAX_REASON = 300

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeftOut:
    """A folder that ought to be a run, and why it is not shown."""

    folder: str
    reason: str


@dataclass(frozen=True)
class Snapshot:
    """What there is now; runs from the newest to the oldest."""

    runs: Sequence[RunView]
    left_out: Sequence[LeftOut]


class Store:
    """The runs of one folder, each line of them read once. Safe for threads."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._folders: dict[str, WatchedFolder] = {}
        self._left_out: list[LeftOut] = []
        self._said: set[LeftOut] = set()
        self._lock = threading.Lock()

    def look(self, show: Callable[[Snapshot], T]) -> T:
        """What `show` makes of the runs as they are now; nothing moves while it is at it."""
        with self._lock:
            views = [self._try(it, it.view) for it in self._read()]
            return show(Snapshot([view for view in views if view], tuple(self._left_out)))

    def keep_up(self) -> None:
        """Reads what is new, so that little is left to read when somebody looks."""
        with self._lock:
            self._read()

    def _read(self) -> list[WatchedFolder]:
        self._left_out = []
        self._find_folders()
        shown = _newest([it for it in self._folders.values() if self._try(it, it.look)])
        return [it for it in shown if self._follow(it, shown)]

    def _find_folders(self) -> None:
        try:
            with os.scandir(self.runs) as entries:
                inodes = {
                    entry.name: entry.inode()
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
                }
        except FileNotFoundError:  # no run was made here yet
            inodes = {}
        except OSError as exc:
            inodes = {}
            self._leave_out(LeftOut(str(self.runs), exc.strerror or str(exc)))
        self._folders = {
            name: known
            if (known := self._folders.get(name)) and known.inode == inode
            else WatchedFolder(self.runs / name, inode)
            for name, inode in inodes.items()
        }

    def _follow(self, folder: WatchedFolder, shown: Sequence[WatchedFolder]) -> bool:
        """Running runs, and the last of those that have ended, are read record by record."""
        last = next((it.group for it in shown if not it.running), None)
        if not folder.running and folder.group != last:
            folder.forget()
            return True

        def follow() -> bool:
            folder.follow()
            return True

        return bool(self._try(folder, follow))

    def _try(self, folder: WatchedFolder, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as exc:  # whatever is in one folder, the other runs stay
            reason = str(exc) if hasattr(exc, "rule") else f"{type(exc).__name__}: {exc}"
            self._leave_out(LeftOut(folder.path.name, reason[:_MAX_REASON]))
            return None

    def _leave_out(self, it: LeftOut) -> None:
        self._left_out.append(it)
        if it not in self._said:
            self._said.add(it)
            _log.warning("left out %r: %r", it.folder, it.reason)


def _newest(folders: Sequence[WatchedFolder]) -> list[WatchedFolder]:
    """Newest first: all that run, and the last ones of those that have ended."""
    shown = sorted(folders, key=lambda it: it.age, reverse=True)
    ended = [it for it in shown if not it.running][:MAX_ENDED_RUNS]
    return [it for it in shown if it.running or it in ended]
