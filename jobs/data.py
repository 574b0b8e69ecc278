"""Training data: a text cut into windows of bytes, shared out over the ranks.

Owns each rank's position in it. Randomness comes from the job's seed alone, so that every rank
shuffles alike and takes its own share.
Shapes: windows are context + 1 bytes, of which the first context predict the last context.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from jobs.text import num_windows

FINGERPRINT_DIGITS = 16


class Windows(Dataset[Tensor]):
    """A text as windows that overlap by the one byte that is only ever predicted."""

    def __init__(self, content: bytes | bytearray, context: int) -> None:
        # shared with a text that was read; bytes are copied, since torch wants them writable
        memory = content if isinstance(content, bytearray) else bytearray(content)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return num_windows(len(self._bytes), self._context)

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
