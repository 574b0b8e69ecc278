"""Training data: a text cut into windows of bytes, shared out over the ranks.

Owns reading, the text's fingerprint, and each rank's position in it. Randomness comes from the
job's seed alone, so that every rank shuffles alike and takes its own share.
Shapes: windows are context + 1 bytes, of which the first context predict the last context.
"""

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from jobs.errors import DataError
from jobs.spec import DataSpec

MAX_TEXT_BYTES = 1 << 28


@dataclass(frozen=True)
class Text:
    """All bytes of the training data, where they came from, and their fingerprint."""

    source: str
    content: bytes
    sha256: str


def load_text(path: str | None) -> Text:
    """Reads a file, or every file of a folder in order of their names; None: Python's own library.

    Raises DataError when there is nothing to read, or more than a rank should hold in memory.
    """
    if path is None:
        library = Path(sysconfig.get_paths()["stdlib"])
        parts = sorted(library.glob("*.py"))
        source = "the Python standard library's own source"
    else:
        parts = _files_under(Path(path))
        source = path
    content = _read(parts, source)
    if not content:
        raise DataError(
            f"data.path: {source}: empty",
            rule="training needs bytes to read",
            fix="name a file or folder with text, or path: null for Python's own library",
        )
    return Text(source, content, hashlib.sha256(content).hexdigest())


SOURCES: dict[str, Callable[[str | None], Text]] = {"text": load_text}


def load_data(spec: DataSpec) -> Text:
    """What the job trains on. Raises DataError as its source does."""
    return SOURCES[spec.kind](spec.path)


def _files_under(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = (part.relative_to(path).parts for part in path.rglob("*"))
        names = sorted(parts for parts in inside if not any(name[0] == "." for name in parts))
        return [path.joinpath(*parts) for parts in names if path.joinpath(*parts).is_file()]
    raise DataError(
        f"data.path: {path}: {'neither a file nor a folder' if path.exists() else 'not found'}",
        rule="a file, or a folder of files, that every node can read",
        fix="give a path that exists, or path: null for Python's own library",
    )


def _read(paths: list[Path], source: str) -> bytes:
    content = bytearray()
    for path in paths:
        try:
            if len(content) + path.stat().st_size > MAX_TEXT_BYTES:
                raise DataError(
                    f"data.path: {source}: more than {MAX_TEXT_BYTES >> 20} MiB",
                    rule="each rank holds the whole text in memory",
                    fix="name a smaller file or folder",
                )
            content += path.read_bytes()
        except OSError as exc:
            raise DataError(
                f"data.path: {path}: {exc.strerror}",
                rule="every file of the training data can be read on every node",
                fix="change its permissions, or name another file or folder",
            ) from exc
    return bytes(content)


class Windows(Dataset[Tensor]):
    """A text as windows that overlap by the one byte that is only ever predicted."""

    def __init__(self, content: bytes, context: int) -> None:
        self._bytes = torch.frombuffer(bytearray(content), dtype=torch.uint8)
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

    def next(self) -> tuple[Tensor, Tensor]: ...


class Batches:
    """This rank's micro-batches without end: (batch, context) inputs and the same of targets.

    A pass visits every window once over all ranks (the last ones twice where they do not divide
    evenly); a batch that starts in one pass ends in the next, so all batches are full.
    """

    def __init__(
        self, windows: Windows, batch_size: int, rank: int, world_size: int, seed: int
    ) -> None:
        self._windows = windows
        self._batch_size = batch_size
        self._sampler: DistributedSampler[int] = DistributedSampler(
            windows, world_size, rank, shuffle=True, seed=seed
        )
        self._position = Position(0, 0)
        self._share: list[int] = []
        self._move_to(self._position)

    @property
    def position(self) -> Position:
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        self._move_to(position)

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
        self._sampler.set_epoch(position.epoch)
        self._share = list(self._sampler)
        self._position = position


def check_enough(windows: Windows, text: Text, samples_per_step: int, context: int) -> None:
    """Raises DataError unless one step of all ranks finds a window for every sample."""
    if len(windows) >= samples_per_step:
        return
    needed = samples_per_step * context + 1
    raise DataError(
        f"data.path: {text.source}: {len(text.content):,} bytes, {len(windows)} windows",
        rule=f"one step of all ranks takes {samples_per_step} windows of {context} bytes: "
        f"at least {needed:,} bytes",
        fix="give a longer text, or lower data.batch_size, train.accumulate or model.context",
    )
