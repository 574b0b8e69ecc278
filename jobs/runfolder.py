"""The run folder `runs/<run_id>`: made without collisions, listed, and cleaned up.

Owns names, run.json, the lock that marks a run as going on, and runs/latest. A folder is one of
ours when its run.json names it; nothing else is ever touched.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs.errors import RecordsError

LATEST = "latest"
LOCK = ".running"
ASIDE = ".new-"
"""How what is being made or removed is called; a minute later nobody works on it any more."""
ASIDE_AT_MOST_S = 60.0
MAX_SAME_MINUTE = 1000


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; `run_id` is its name."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON object of this folder; None where it is not (yet) there or is not one."""
        try:
            document = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """The whole file or none of it, also when this process is killed meanwhile."""
        self.write_text(name, json.dumps(document, indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        replace_file(self.path / name, lambda path: path.write_text(text, encoding="utf-8"))

    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def is_running(self) -> bool:
        """Whether a launcher holds this run; the kernel forgets one that was killed."""
        try:
            with (self.path / LOCK).open("rb") as lock:
                return not _try_lock(lock.fileno())
        except FileNotFoundError:
            return False


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` make a neighbour of `path`, then renames it over `path`.

    Raises RecordsError where the folder cannot be written to.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=ASIDE, dir=path.parent))
        try:
            write(folder / path.name)
            (folder / path.name).replace(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as exc:
        raise _unwritable(path, exc) from exc


def run_name(job: str, cluster: str, rate: str, now: datetime) -> str:
    """Such as 20261130-1104-hier-2x2-200mbit, from the letters a folder's name can do with."""
    parts = (now.strftime("%Y%m%d-%H%M"), job, cluster, rate)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))


@contextmanager
def create_run(
    runs: Path, name: str, describe: Callable[[str], Mapping[str, Any]]
) -> Iterator[RunFolder]:
    """A new folder with its run.json (`describe(run_id)`), locked as running inside the block.

    runs/latest leads to it. Taken names get -2, -3, ... Raises RecordsError, and leaves nothing,
    where the folder cannot be made.
    """
    with ExitStack() as stack:

        def fill(folder: RunFolder, run_id: str) -> None:
            lock = stack.enter_context((folder.path / LOCK).open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            folder.write("run.json", describe(run_id))

        folder = claim_folder(runs, name, fill)
        try:
            point_latest(folder)
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        try:
            yield folder
        finally:
            (folder.path / LOCK).unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[RunFolder]:
    """A folder that lies aside inside the block, and then has this name; none where it fails.

    Raises RecordsError where the name is taken, or the folder cannot be made.
    """
    if os.path.lexists(path):
        raise RecordsError(
            f"{path}: there already",
            rule="each run has a folder of its own",
            fix="give it another name, or remove what is there",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = RunFolder(_aside(path.parent))
        aside.path.mkdir()
        try:
            yield aside
            aside.path.rename(path)
        finally:
            shutil.rmtree(aside.path, ignore_errors=True)
    except OSError as exc:
        raise _unwritable(path, exc) from exc


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Marks a folder that is there already as running, inside the block."""
    path = folder.path / LOCK
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def point_latest(folder: RunFolder) -> None:
    """Makes runs/latest a link to the folder, unless something that is no link is in its place."""
    latest = folder.path.parent / LATEST
    if latest.exists() and not latest.is_symlink():
        raise RecordsError(
            f"{latest}: not a link",
            rule="it leads to the last run; what others made is not replaced",
            fix=f"move {latest} out of the way",
        )
    replace_file(latest, lambda path: path.symlink_to(folder.run_id))


def list_runs(runs: Path) -> list[RunFolder]:
    """All runs, oldest first; folders that are not ours are left out."""
    if not runs.is_dir():
        return []
    folders = [RunFolder(path) for path in runs.iterdir() if path.is_dir()]
    ours = [folder for folder in folders if not folder.path.is_symlink() and _is_ours(folder)]
    return sorted(ours, key=lambda folder: (_created_at(folder), folder.run_id))


def clean_runs(runs: Path, keep: int) -> list[RunFolder]:
    """Removes all runs but the last `keep`, and returns the removed; running ones stay as well."""
    if keep < 0:
        raise RecordsError(
            f"KEEP={keep}", rule="how many of the last runs stay: 0 or more", fix="KEEP=10"
        )
    _sweep(runs)
    folders = list_runs(runs)
    removed = [folder for folder in folders[: len(folders) - keep] if _remove(folder)]
    latest = runs / LATEST
    if latest.is_symlink() and not latest.exists():
        kept = [folder for folder in folders if folder not in removed]
        point_latest(kept[-1]) if kept else latest.unlink()
    return removed


def claim_folder(
    runs: Path, name: str, fill: Callable[[RunFolder, str], object] = lambda _folder, _name: None
) -> RunFolder:
    """A new folder of that name, or of the name with -2, -3, ... where it is taken.

    `fill` is given the folder while it lies aside, and the name that it will have: whoever is
    killed meanwhile leaves nothing that looks like a run.
    """
    _require_place(runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        _sweep(runs)
        aside = RunFolder(_aside(runs))
        aside.path.mkdir()
        try:
            for number in range(1, MAX_SAME_MINUTE):
                path = runs / (name if number == 1 else f"{name}-{number}")
                if not os.path.lexists(path):
                    fill(aside, path.name)
                    if _renamed(aside.path, path):
                        return RunFolder(path)
        except BaseException:
            shutil.rmtree(aside.path, ignore_errors=True)
            raise
    except OSError as exc:
        raise _unwritable(runs / name, exc) from exc
    shutil.rmtree(aside.path, ignore_errors=True)
    raise RecordsError(
        f"{runs / name}: taken, and so are {MAX_SAME_MINUTE - 2} names after it",
        rule="each run has a folder of its own",
        fix="make runs-clean KEEP=10",
    )


def _require_place(runs: Path) -> None:
    if runs.exists() and not runs.is_dir():
        raise RecordsError(
            f"{runs}: not a folder",
            rule="the folders of all runs lie in it",
            fix=f"move {runs} out of the way",
        )


def _aside(runs: Path) -> Path:
    return runs / f"{ASIDE}{os.getpid()}-{secrets.token_hex(4)}"


def _renamed(path: Path, to: Path) -> bool:
    """False where somebody else has taken the name meanwhile."""
    try:
        path.rename(to)
    except OSError as exc:
        if exc.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _sweep(runs: Path) -> None:
    """Removes what was left aside by those who were killed while they made or removed it."""
    for path in runs.glob(f"{ASIDE}*"):
        with suppress(OSError):
            old = time.time() - path.lstat().st_mtime > ASIDE_AT_MOST_S
            if old and not RunFolder(path).is_running():
                shutil.rmtree(path)


def _is_ours(folder: RunFolder) -> bool:
    return (folder.read("run.json") or {}).get("run_id") == folder.run_id


def _created_at(folder: RunFolder) -> str:
    return str((folder.read("run.json") or {}).get("created_at", ""))


def _remove(folder: RunFolder) -> bool:
    if folder.is_running():
        return False
    aside = _aside(folder.path.parent)
    try:
        folder.path.rename(aside)
        shutil.rmtree(aside)
    except OSError as exc:
        with suppress(OSError):  # what stays is not hidden
            aside.rename(folder.path)
        raise _unwritable(folder.path, exc) from exc
    return True


def _try_lock(file_descriptor: int) -> bool:
    try:
        fcntl.flock(file_descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unwritable(path: Path, exc: OSError) -> RecordsError:
    full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    return RecordsError(
        f"{path}: {os.strerror(exc.errno) if exc.errno else exc}",
        rule="a run keeps what it measured in a folder of its own",
        fix="make room on this disk: make runs-clean KEEP=10"
        if full
        else f"make {path.parent} a folder that you can write to",
    )
