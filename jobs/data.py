"""Training data: a text cut into windows of bytes, shared out over the ranks.

Owns reading, the text's fingerprint, and each rank's position in it. Randomness comes from the
job's seed alone, so that every rank shuffles alike and takes its own share.
Shapes: windows are context + 1 bytes, of which the first context predict the last context.
"""

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from jobs.errors import DataError
from jobs.spec import DataSpec

MAX_TEXT_BYTES = 1 << 28
MAX_TEXT_FILES = 100_000
FINGERPRINT_DIGITS = 16


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


class Windows(Dataset[Tensor]):
    """A text as windows that overlap by the one byte that is only ever predicted."""

    def __init__(self, content: bytes | bytearray, context: int) -> None:
        # shared with a text that was read; bytes are copied, since torch wants them writable
        memory = content if isinstance(content, bytearray) else bytearray(content)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return max(0, (len(self._bytes) - 1) // self._context)

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._context
        return self._bytes[start : start + self._context + 1].long()  # (context + 1,)


@dataclass(frozen=True)
class Position:
    """Where a rank is in its data: the pass over the text, and samples taken of that pass."""

    epoch: int
    taken: int


class BatchSource(Protocol):
    """Where training takes its micro-batches from; `position` can be taken and set again."""

    position: Position

    @property
    def orders(self) -> Sequence[str]:
        """A fingerprint of this rank's order in each pass so far, the one under way included."""

    def next(self) -> tuple[Tensor, Tensor]: ...


class Batches:
    """This rank's micro-batches without end: (batch, context) inputs and the same of targets.

    A pass visits every window once over all ranks (the last ones twice where they do not divide
    evenly); a batch that starts in one pass ends in the next, so all batches are full. Without
    `set_epoch` the sampler is not told of a new pass, and repeats the order of the first.
    """

    def __init__(
        self,
        windows: Windows,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        *,
        set_epoch: bool = True,
    ) -> None:
        self._windows = windows
        self._batch_size = batch_size
        self._sampler: DistributedSampler[int] = DistributedSampler(
            windows, world_size, rank, shuffle=True, seed=seed
        )
        self._set_epoch = set_epoch
        self._position = Position(0, 0)
        self._share: list[int] = []
        self._orders: list[str] = []
        self._move_to(self._position)

    @property
    def position(self) -> Position:
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        self._move_to(position)

    @property
    def orders(self) -> Sequence[str]:
        """A fingerprint of this rank's order in each pass so far, the one under way included."""
        return tuple(self._orders)

    def next(self) -> tuple[Tensor, Tensor]:
        batch = torch.stack([self._windows[index] for index in self._take()])
        return batch[:, :-1], batch[:, 1:]  # both (batch, context)

    def _take(self) -> Iterator[int]:
        for _ in range(self._batch_size):
            if self._position.taken == len(self._share):
                self._move_to(Position(self._position.epoch + 1, 0))
            yield self._share[self._position.taken]
            self._position = Position(self._position.epoch, self._position.taken + 1)

    def _move_to(self, position: Position) -> None:
        if self._set_epoch:
            self._sampler.set_epoch(position.epoch)
        self._share = list(self._sampler)
        # what lay ahead of an earlier position was taken back
        self._orders[position.epoch :] = [_fingerprint(self._share)]
        self._position = position


def _fingerprint(order: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, order)).encode()).hexdigest()[:FINGERPRINT_DIGITS]


def check_enough(windows: Windows, text: Text, samples_per_step: int, context: int) -> None:
    """Raises DataError unless one step of all ranks finds a window for every sample."""
    if len(windows) >= samples_per_step:
        return
    needed = samples_per_step * context + 1
    raise DataError(
        f"data.path: {text.source}: {len(text.content):,} bytes, {len(windows)} windows",
        rule=f"one step of all ranks takes {samples_per_step} windows of {context} bytes: "
        f"at least {needed:,} bytes",
        fix="give a longer text (a larger data.limit_bytes, where it is limited), or lower "
        "data.batch_size, train.accumulate or the model's context",
    )
