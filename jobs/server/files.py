"""Files in a folder of runs, as somebody who only looks reads them.

Whatever lies there may be half-written, foreign or gone with the next look: what is no plain file
is never opened, and what has not changed is never read again.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.errors import RecordsError
from jobs.records import RankRecords, RecordReader, StepRecord


def plain_file(path: Path) -> os.stat_result | None:
    """What the file is now; None where there is none, or a link, a pipe or a folder."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


class Document:
    """A JSON object in a file that is replaced whole; read again only when it was replaced."""

    def __init__(self, path: Path, leave_out: str | None = None) -> None:
        """`leave_out` is a key that is long and that nobody here needs."""
        self._path = path
        self._leave_out = leave_out
        self._mark: tuple[int, int, int] | None = None
        self._content: dict[str, Any] | None = None
        self._fault: RecordsError | None = None

    def poll(self) -> Mapping[str, Any] | None:
        """The object as it is now; None where there is no such file. Raises RecordsError."""
        status = plain_file(self._path)
        mark = (status.st_ino, status.st_size, status.st_mtime_ns) if status else None
        if mark != self._mark:
            self._mark, self._content, self._fault = mark, None, None
            if status:
                self._read()
        if self._fault:
            raise self._fault
        return self._content

    def _read(self) -> None:
        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError) as exc:
            self._fault = self._unreadable(str(exc))
            return
        if not isinstance(content, dict):
            self._fault = self._unreadable(f"it holds a {type(content).__name__}")
            return
        content.pop(self._leave_out, None)
        self._content = content

    def _unreadable(self, seen: str) -> RecordsError:
        return RecordsError(
            f"{self._path.name}: {seen}",
            rule="it is one JSON object that this user may read",
            fix="move the folder away, or run the job again",
        )


class RankFile:
    """The records of one rank, read as they grow: each line once.

    Only header, baseline and end are kept in `records`; the steps are handed over by `new_steps`.
    """

    def __init__(self, path: Path) -> None:
        self._reader = RecordReader(path)
        self._seen: os.stat_result | None = None

    @property
    def records(self) -> RankRecords:
        return self._reader.records

    def new_steps(self) -> list[StepRecord]:
        """The steps that were written since the last call; a file that did not grow is not opened.

        Raises RecordsError where it is no longer the file that was read.
        """
        path, seen = self._reader.path, self._seen
        status = plain_file(path)
        if status is None and seen is None:
            return []
        if status is None or (seen and _is_another(status, seen)):
            raise RecordsError(
                f"{path.name}: replaced or cut off after it was read",
                rule="records only grow",
                fix="run the job again",
            )
        if seen and status.st_size == seen.st_size:
            return []
        self._seen = status
        steps = self._reader.poll().steps
        new = list(steps)
        steps.clear()
        return new


def _is_another(now: os.stat_result, before: os.stat_result) -> bool:
    return now.st_ino != before.st_ino or now.st_size < before.st_size
