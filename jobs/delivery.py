"""Run folders that ranks cannot write to: what they record comes to the launcher as messages.

Owns that a line of a rank is a line of its file, in the folder of the job that it speaks of.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from jobs.predict import PREDICTION
from jobs.records import RecordFile, records_path
from jobs.runfolder import RunFolder


class Delivery:
    """The record files of all ranks of one or more jobs, open while they run.

    Where nodes share this machine's files ranks write for themselves, and none comes here.
    """

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        self._folders = folders
        self._files: dict[tuple[int, int], RecordFile] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def take(self, rank: int, data: Mapping[str, Any]) -> None:
        """One message of a rank, written down if it is for its run folder. Raises RecordsError."""
        if data["kind"] == "record":
            self._file(int(data["job"]), rank).write(str(data["line"]).encode())
        elif data["kind"] == "prediction":
            self._folders[int(data["job"])].write(PREDICTION, data["document"])

    def _file(self, job: int, rank: int) -> RecordFile:
        if (job, rank) not in self._files:
            path = records_path(self._folders[job].path, rank)
            self._files[job, rank] = self._stack.enter_context(RecordFile(path))
        return self._files[job, rank]
