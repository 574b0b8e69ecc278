"""Memory that the ranks of a node share: where buckets lie, and how peers find a place in it.

Owns anonymous files in memory (memfd): they have no name, so that nothing outlives the processes
that hold them, and reach a peer only as a descriptor over a socket of the node.
"""

import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ddp.errors import TransportError

ALIGNMENT = 64  # bytes: a cache line, so that no two buffers share one


class Place(NamedTuple):
    """Where a tensor begins: bytes from the start of an arena."""

    arena: int
    offset: int


@dataclass(frozen=True)
class Arena:
    """One piece of shared memory. `start`: its address in this process."""

    number: int
    fd: int
    size: int
    start: int


class SharedMemory:
    """The arenas of one rank. One ends when no tensor lies in it any more."""

    def __init__(self) -> None:
        self._arenas: dict[int, Arena] = {}
        self._mapped: dict[int, weakref.ref[mmap.mmap]] = {}
        self._num_made = 0

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        """A row of zeros for each number of elements, in one arena.

        Raises TransportError where memory is too small.
        """
        sizes = [numel * dtype.itemsize for numel, dtype in rows]
        starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
        memory = self._make(max(starts[-1], ALIGNMENT))
        return [
            memory[start : start + size].view(dtype)
            for start, size, (_, dtype) in zip(starts, sizes, rows, strict=False)
        ]

    def place(self, tensor: Tensor) -> Place | None:
        """Where `tensor` lies; None outside all arenas."""
        address = tensor.data_ptr()
        for arena in tuple(self._arenas.values()):
            if 0 <= address - arena.start < arena.size:
                return Place(arena.number, address - arena.start)
        return None

    def find(self, number: int) -> Arena | None:
        return self._arenas.get(number)

    def close(self) -> None:
        """Nothing can be shown any more; rows keep their memory as long as they are used."""
        for number in tuple(self._arenas):
            self._end(number)

    def _make(self, size: int) -> Tensor:
        fd = os.memfd_create("ddp", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
            memory = _map(fd, size)
        except OSError as exc:
            os.close(fd)
            raise TransportError(
                f"{size / 1e6:,.1f} MB of shared memory for buckets: {exc.strerror}; ranks of a "
                "node read each other's buckets there: give the node that much more memory, or use "
                "shared_memory=False"
            ) from exc
        self._num_made += 1
        number, tensor = self._num_made, torch.frombuffer(memory, dtype=torch.uint8)
        self._mapped[number] = weakref.ref(memory, lambda _: self._end(number))
        self._arenas[number] = Arena(number, fd, size, tensor.data_ptr())
        return tensor

    def _end(self, number: int) -> None:
        self._mapped.pop(number, None)
        if arena := self._arenas.pop(number, None):
            os.close(arena.fd)


class PeerMemory:
    """The arenas of one peer, as far as it has shown them."""

    def __init__(self) -> None:
        self._memory: dict[int, Tensor] = {}

    def add(self, number: int, fd: int, size: int) -> None:
        """Map what `fd` stands for, and close it."""
        try:
            self._memory[number] = torch.frombuffer(_map(fd, size), dtype=torch.uint8)
        finally:
            os.close(fd)

    def drop(self, number: int) -> None:
        del self._memory[number]

    def view(self, place: Place, num_bytes: int, dtype: torch.dtype) -> Tensor:
        """A peer's tensor where the peer has it."""
        return self._memory[place.arena][place.offset : place.offset + num_bytes].view(dtype)


def _map(fd: int, size: int) -> mmap.mmap:
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
