"""Where a lab's state lies between commands: one directory per lab, private to its user.

Owns trust (owner and mode are checked), locking, and atomic writing. Knows nothing of what a
backend keeps there, or whether a lab is alive.
"""

import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, LabBusy, StateRefused

DEFAULT_LAB = "default"
STATE_FILE = "state.json"
LOCK_FILE = "lock"
USE_FILE = "use"
TAKEN_DOWN = "taken down"
LOOK_AT_MOST_S = 0.1
SCHEMA = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


def state_root(environ: Mapping[str, str], uid: int) -> Path:
    """The directory of all labs of this user; made when missing. Raises StateRefused."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_ours(Path(runtime), uid) and os.access(runtime, os.W_OK | os.X_OK):
        root = Path(runtime) / "ddplab"
    else:
        root = Path(f"/tmp/ddplab-{uid}")
    _make_private(root, uid)
    return root


def _is_ours(path: Path, uid: int) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


def _make_private(path: Path, uid: int) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as exc:
        rule = "the state of labs lies in a directory of its user"
        fix = f"look at what is there: ls -ld {path.parent} {path}"
        raise StateRefused(f"{path} cannot be made: {exc.strerror}", rule, fix) from exc
    seen = None
    if not stat.S_ISDIR(status.st_mode):
        seen = "it is not a directory"
    elif status.st_uid != uid:
        seen = f"it belongs to user {status.st_uid}, this is user {uid}"
    elif status.st_mode & 0o022:
        seen = f"others may write to it (mode {stat.S_IMODE(status.st_mode):o})"
    if seen:
        raise StateRefused(
            f"{path} cannot be trusted",
            "the state of labs lies in a directory that only its user can write to",
            f"look at it, then remove it: ls -ld {path}",
            seen=seen,
        )


@dataclass(frozen=True)
class Activity:
    """What somebody does with a lab, such as `run 20261130-1104-hier (process 71)`."""

    what: str
    since: float
    """Wall clock, seconds since 1970."""


class Use:
    """A lab as its one user holds it; what is told here is read by those who are refused."""

    def __init__(self, file: int) -> None:
        self._file = file

    def tell(self, what: str) -> None:
        """Says who uses the lab, such as `run 20261130-1104-hier`."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{what} (process {os.getpid()})".encode(), 0)

    @property
    def lab_taken_down(self) -> bool:
        """Whether `LabDirectory.tell_user_it_ends` was called meanwhile."""
        return os.pread(self._file, len(TAKEN_DOWN), 0).decode(errors="replace") == TAKEN_DOWN


@dataclass(frozen=True)
class LabDirectory:
    """The directory of one lab."""

    name: str
    path: Path

    @classmethod
    def of(cls, name: str) -> "LabDirectory":
        """The directory of the lab of this name; it may not exist. Raises StateRefused."""
        if not _NAME.fullmatch(name):
            shown = name if len(name) <= 40 else name[:40] + "..."
            raise ClusterError(
                f"{shown!r} cannot name a lab",
                "1 to 31 lower-case letters, digits and dashes, the first no dash",
                "write LAB=my-lab",
            )
        return cls(name, state_root(os.environ, os.geteuid()) / name)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Labs that have state here."""
        root = state_root(os.environ, os.geteuid())
        return tuple(sorted(path.parent.name for path in root.glob(f"*/{STATE_FILE}")))

    @classmethod
    def all_names(cls) -> tuple[str, ...]:
        """Labs that have state here, are just coming up, or were left half made."""
        root = state_root(os.environ, os.geteuid())
        folders = [path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
        return tuple(sorted(name for name in folders if _NAME.fullmatch(name)))

    @contextmanager
    def locked(self, timeout_s: float = 3.0) -> Iterator[None]:
        """Keeps other commands off this lab; makes the directory. Raises LabBusy."""
        lock = self._acquire(timeout_s)
        try:
            os.truncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            yield
        finally:
            os.close(lock)

    def worker(self) -> Activity | None:
        """The process that has the lab locked now; None where none has."""
        return self._activity(LOCK_FILE)

    def usage(self) -> Activity | None:
        """What runs on the lab's links now; None where nothing does."""
        return self._activity(USE_FILE)

    def _activity(self, name: str) -> Activity | None:
        try:
            file = os.open(self.path / name, os.O_RDWR)
        except OSError:
            return None
        try:
            if _try_lock(file, fcntl.LOCK_SH):
                return None
            told = os.pread(file, 1000, 0).decode(errors="replace")
            return Activity(told or "unknown", os.fstat(file).st_mtime)
        finally:
            os.close(file)

    def _acquire(self, timeout_s: float) -> int:
        """The locked file; opened again where another command removed it meanwhile."""
        deadline = time.monotonic() + timeout_s
        while True:
            _make_private(self.path, os.geteuid())
            lock = -1
            try:
                lock = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), (self.path / LOCK_FILE).stat()):
                    return lock
                os.close(lock)
            except FileNotFoundError:
                if lock >= 0:
                    os.close(lock)
            except BlockingIOError:
                os.close(lock)
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                raise LabBusy(
                    f'another command is working on lab "{self.name}"',
                    "one command at a time changes a lab",
                    "wait until it has ended, or use another lab with LAB=name",
                    seen=f"process {self._locked_by()}, waited {timeout_s:g} s",
                ) from None

    def _locked_by(self) -> str:
        try:
            return (self.path / LOCK_FILE).read_text() or "unknown"
        except OSError:
            return "unknown"

    @contextmanager
    def in_use(self, what: str) -> Iterator[Use]:
        """Keeps other users off the lab's links until the block, or this process, has ended.

        Raises LabBusy, naming who uses it, and FileNotFoundError where the lab is gone.
        """
        file = os.open(self.path / USE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _try_lock_soon(file):
                raise LabBusy(
                    f'lab "{self.name}" is in use',
                    "one job or measurement at a time: two would share its links, and the "
                    "figures of neither would be true",
                    ("wait until it has ended", "use another lab: LAB=name"),
                    seen=os.pread(file, 200, 0).decode(errors="replace") or None,
                )
            use = Use(file)
            use.tell(what)
            yield use
        finally:
            os.close(file)

    def user(self) -> str | None:
        """Who uses the lab's links now; None where nobody does."""
        usage = self.usage()
        return usage.what if usage else None

    def tell_user_it_ends(self) -> None:
        """Lets who uses the lab know that it ends because it is taken down."""
        with suppress(OSError):
            (self.path / USE_FILE).write_text(TAKEN_DOWN)

    def read(self) -> dict[str, Any] | None:
        """What `write` kept; None where no lab is up. Raises StateRefused when unreadable."""
        try:
            data = json.loads((self.path / STATE_FILE).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise self.unreadable(str(exc)) from exc
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise self.unreadable("it was written by another version")
        return data

    def unreadable(self, seen: str) -> StateRefused:
        """The error for a state that cannot be understood."""
        fix = f"take the lab down with the version that made it, or remove {self.path}"
        rule = "what is kept of a lab is read as it was written, or not at all"
        return StateRefused(f"{self.path / STATE_FILE} cannot be read", rule, fix, seen=seen)

    def write(self, data: Mapping[str, Any]) -> None:
        """Replaces the state in one step. Call it with the lock held."""
        aside = self.path / (STATE_FILE + ".new")
        with aside.open("w") as file:
            json.dump({"schema": SCHEMA, **data}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path / STATE_FILE)

    def clear(self) -> None:
        """Removes all but the lock, so that a lab can be made here. Call it with the lock held."""
        (self.path / STATE_FILE).unlink(missing_ok=True)
        for entry in self.path.iterdir():
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove(self) -> None:
        """Removes everything. Call it with the lock held, and last."""
        self.clear()
        (self.path / LOCK_FILE).unlink()
        self.path.rmdir()


def _try_lock_soon(file: int) -> bool:
    """A look at who holds it (`_activity`) holds it for a moment."""
    deadline = time.monotonic() + LOOK_AT_MOST_S
    while not _try_lock(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_AT_MOST_S / 10)
    return True


def _try_lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
