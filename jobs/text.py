"""The text that a job trains on: read whole, with where it came from and its fingerprint.

Owns reading and the limits of it. Needs no torch, so that whoever starts a job may look first.
"""

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobs.errors import DataError
from jobs.spec import DataSpec

MAX_TEXT_BYTES = 1 << 28
MAX_TEXT_FILES = 100_000


@dataclass(frozen=True)
class Text:
    """All bytes of the training data, where they came from, and their fingerprint."""

    source: str
    content: bytes | bytearray
    sha256: str


def load_text(path: str | None, limit_bytes: int | None = None) -> Text:
    """Reads a file, or every file of a folder in order of their names; None: Python's own library.

    No more than `limit_bytes` of it, where that is given.

    Of a folder: all below it but hidden names; links to files, not links to folders. Raises
    DataError when there is nothing to read, a part of it cannot be read, or it is more than a rank
    should hold in memory.
    """
    if path is None:
        library = Path(sysconfig.get_paths()["stdlib"])
        parts: Iterable[Path] = sorted(library.glob("*.py"))
        source = "the Python standard library's own source"
    else:
        parts = _files_under(Path(path))
        source = shown(path)
    content = _read(parts, source, limit_bytes)
    if limit_bytes is not None and len(content) == limit_bytes:
        source = f"the first {limit_bytes:,} bytes of {source}"
    if not content:
        raise DataError(
            f"data.path: {source}: empty",
            rule="training needs bytes to read",
            fix="name a file or folder with text, or path: null for Python's own library",
        )
    return Text(source, content, hashlib.sha256(content).hexdigest())


SOURCES: dict[str, Callable[[str | None, int | None], Text]] = {"text": load_text}


def load_data(spec: DataSpec) -> Text:
    """What the job trains on. Raises DataError as its source does."""
    return SOURCES[spec.kind](spec.path, spec.limit_bytes)


def shown(path: str | Path) -> str:
    """The path as it can be printed and written down, whatever bytes its name is made of."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _files_under(path: Path) -> Iterator[Path]:
    if _mode(path) == "file":
        yield path
    elif _mode(path) == "folder":
        yield from _files_in(path)
    else:
        raise DataError(
            f"data.path: {shown(path)}: neither a file nor a folder",
            rule="a file, or a folder of files, that every node can read",
            fix="give another path, or path: null for Python's own library",
        )


def _files_in(folder: Path) -> Iterator[Path]:
    """Every file below, in order of names, as far as it is asked for: a folder may be endless."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".")
    except OSError as exc:
        raise _unreadable(folder, exc) from exc
    for name in names:
        path = folder / name
        if _mode(path) == "file":
            yield path
        elif _mode(path) == "folder" and not path.is_symlink():
            yield from _files_in(path)


def _mode(path: Path) -> Literal["file", "folder", "other"]:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as exc:  # ValueError: a zero byte in the name
        raise _unreadable(path, exc) from exc
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, FileNotFoundError):
        reason = "a link to something that is not there" if path.is_symlink() else "not found"
    return DataError(
        f"data.path: {shown(path)}: {reason}",
        rule="every file of the training data can be read on every node",
        fix="mend that, name another file or folder, or path: null for Python's own library",
    )


def _read(paths: Iterable[Path], source: str, limit_bytes: int | None) -> bytearray:
    most = MAX_TEXT_BYTES + 1  # no more than one byte too many, whatever its size
    most = most if limit_bytes is None else min(most, limit_bytes)
    content = bytearray()
    for number, path in enumerate(paths):
        try:
            with path.open("rb") as file:
                content += file.read(most - len(content))
        except OSError as exc:
            raise _unreadable(path, exc) from exc
        if len(content) > MAX_TEXT_BYTES or number == MAX_TEXT_FILES:
            raise DataError(
                f"data.path: {source}: more than "
                + (
                    f"{number:,} files"
                    if number == MAX_TEXT_FILES
                    else f"{MAX_TEXT_BYTES >> 20} MiB"
                ),
                rule="each rank holds the whole text in memory",
                fix="name a smaller file or folder, or set data.limit_bytes",
            )
        if len(content) == limit_bytes:
            break
    return content


def num_windows(num_bytes: int, context: int) -> int:
    """How many windows of `context` bytes, with the one that follows, so much text has."""
    return max(0, (num_bytes - 1) // context)


def check_enough(text: Text, samples_per_step: int, context: int) -> None:
    """Raises DataError unless one step of all ranks finds a window for every sample."""
    found = num_windows(len(text.content), context)
    if found >= samples_per_step:
        return
    needed = samples_per_step * context + 1
    raise DataError(
        f"data.path: {text.source}: {len(text.content):,} bytes, {found} windows",
        rule=f"one step of all ranks takes {samples_per_step} windows of {context} bytes: "
        f"at least {needed:,} bytes",
        fix="give a longer text (a larger data.limit_bytes, where it is limited), or lower "
        "data.batch_size, train.accumulate or the model's context",
    )
