"""What one rank writes down: `rank<k>.jsonl`, one JSON object a line, and how to read it back.

Owns the lines header, plan, step, baseline and end, their keys and their order. Derives no figure
from them (summary does). Only appends, so a killed run keeps every line that was complete.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ddp.timing import BucketTiming
from jobs.errors import RecordsError


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step on one rank; keys ending in `_ns` are CLOCK_MONOTONIC nanoseconds.

    The six phases data, forward, backward, comm_exposed, optimizer and other add up to `step_s`;
    all but `other_s` are measured. `exposed` are the intervals spent doing nothing but wait for
    peers. `buckets` are None where the wrapper does not tell, as torch's own; bytes are payload
    this rank sent, None where the backend does not tell. `nic_*` is what the fabric NIC of the node
    counted since the step before; only local rank 0 has it. `loss` is this rank's own, None when it
    is not finite.
    """

    step: int
    t_ns: int
    step_s: float
    data_s: float
    forward_s: float
    backward_s: float
    comm_exposed_s: float
    optimizer_s: float
    other_s: float
    exposed: tuple[tuple[int, int], ...]
    buckets: tuple[BucketTiming, ...] | None
    intra_node_bytes: int | None
    inter_node_bytes: int | None
    samples: int
    loss: float | None
    nic_tx_bytes: int | None = None
    nic_rx_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        record = asdict(self)
        if self.nic_tx_bytes is None:
            del record["nic_tx_bytes"], record["nic_rx_bytes"]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Keys this version does not know are left out; raises KeyError or TypeError if broken."""
        known = {key: record[key] for key in _STEP_KEYS & record.keys()}
        known["exposed"] = tuple((start, end) for start, end in record["exposed"])
        if record["buckets"] is not None:
            known["buckets"] = tuple(BucketTiming(**bucket) for bucket in record["buckets"])
        return cls(**known)


_STEP_KEYS = {entry.name for entry in fields(StepRecord)}


@dataclass(frozen=True)
class BaselineRecord:
    """One step of the same computing with nothing sent, in block 0 (before) or 1 (after)."""

    block: int
    record: StepRecord


@dataclass
class RankRecords:
    """All that is readable of one rank's file; `header` and `end` are None until written.

    `incomplete` tells that the last line was cut off (the rank was killed while writing).
    """

    header: dict[str, Any] | None = None
    steps: list[StepRecord] = field(default_factory=list)
    baseline: list[BaselineRecord] = field(default_factory=list)
    end: dict[str, Any] | None = None
    incomplete: bool = False


def records_path(run_dir: Path, rank: int) -> Path:
    return run_dir / f"rank{rank}.jsonl"


class RecordFile:
    """The file of one rank's records. Raises RecordsError where it is there, or cannot be made."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as exc:
            raise RecordsError(
                f"{path}: {exc.strerror}",
                rule="each rank writes one file of its own into the run folder",
                fix="give each rank its own number, and a folder that every node can write to",
            ) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, line: bytes) -> None:
        """Appends one line; its newline is ours. Raises RecordsError where the disk is full."""
        rest = line + b"\n"
        try:
            while rest:  # a disk that is nearly full takes a part without complaint
                rest = rest[self._file.write(rest) :]
        except OSError as exc:
            raise RecordsError(
                f"{self._file.name}: {exc.strerror}",
                rule="every step is written down",
                fix="make room on the disk that holds the runs: make runs-clean KEEP=5",
            ) from exc


class RecordWriter:
    """Makes the lines of one rank, and hands each to `write` at once, without a newline."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write_line = write

    def header(self, facts: Mapping[str, Any]) -> None:
        """The first line: who writes, and the one wall-clock anchor of all its times."""
        anchor = {"wall_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}
        self._write("header", {**facts, **anchor})

    def plan(self, keys: Mapping[str, Any]) -> None:
        """Keys of the header that were not known when it was written."""
        self._write("plan", keys)

    def step(self, record: StepRecord) -> None:
        self._write("step", record.to_json())

    def baseline(self, block: int, record: StepRecord) -> None:
        self._write("baseline", {"block": block, **record.to_json()})

    def end(self, facts: Mapping[str, Any]) -> None:
        self._write("end", {**facts, "monotonic_ns": time.monotonic_ns()})

    def _write(self, kind: str, content: Mapping[str, Any]) -> None:
        line = json.dumps({"kind": kind, **content}, allow_nan=False, separators=(",", ":"))
        self._write_line(line.encode())


@contextmanager
def file_writer(run_dir: Path, rank: int) -> Iterator[RecordWriter]:
    """A writer into the rank's own file; readers see whole lines. Raises RecordsError."""
    with RecordFile(records_path(run_dir, rank)) as file:
        yield RecordWriter(file.write)


class RecordReader:
    """Reads one rank's file, again and again while it grows: `poll` takes what is new.

    A last line without its newline stays unread until it is complete. Raises RecordsError, naming
    file and line, when a complete line is not a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = RankRecords()
        self._offset = 0
        self._line = 0

    def poll(self) -> RankRecords:
        """Everything read so far. A file that does not exist yet has no records."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return self.records
        whole, newline, rest = content.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        self.records.incomplete = bool(rest)
        for line in whole.splitlines() if newline else ():
            self._line += 1
            self._take(line)
        return self.records

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            kind = record.pop("kind")
            if kind == "step":
                self.records.steps.append(StepRecord.from_json(record))
            elif kind == "baseline":
                block = record.pop("block")
                self.records.baseline.append(BaselineRecord(block, StepRecord.from_json(record)))
            elif kind == "header":
                self.records.header = record
            elif kind == "plan":
                self.records.header = {**(self.records.header or {}), **record}
            elif kind == "end":
                self.records.end = record
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise RecordsError(
                f"{self.path}:{self._line}: {line[:60].decode(errors='replace')!r}",
                rule=f"each line is one record of this version ({type(exc).__name__}: {exc})",
                fix="look at another run, or run the job again",
            ) from exc


def read_records(path: Path) -> RankRecords:
    """All complete lines of one rank's file."""
    return RecordReader(path).poll()
