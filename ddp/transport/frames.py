"""What travels over a socket between two ranks: headers, and bytes that were read ahead.

Owns their layout and nothing that waits.
"""

import ctypes
import struct
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

HEADER = struct.Struct("<QQQQQQ")  # kind, tag, bytes, dtype, and where they lie: arena, offset
INBOX_BYTES = 16 * 1024

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
NUMBER_OF = {dtype: number for number, dtype in enumerate(DTYPES)}


class Kind(IntEnum):
    """What a header announces."""

    BYTES = 0  # of a message; they follow
    PLACE = 1  # of a message, in the sender's shared memory
    READ = 2  # the message of that number in `tag`, which was told by its place, was read
    ARENA = 3  # shared memory of that number; its descriptor comes along
    GONE = 4  # shared memory of that number holds nothing any more
    LANDED = 5  # of a message, in the receiver's memory; the one it lent, in `arena`, was read


@dataclass(slots=True)
class Inbox:
    """Bytes that were read from the socket and not yet looked at: memory[start:end]."""

    memory: memoryview = field(default_factory=lambda: memoryview(bytearray(INBOX_BYTES)))
    start: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    def room(self) -> memoryview:
        if self.start == self.end:
            self.start = self.end = 0
        elif self.start:
            rest = bytes(self.memory[self.start : self.end])
            self.start, self.end = 0, len(rest)
            self.memory[: self.end] = rest
        return self.memory[self.end :]

    def take_into(self, target: memoryview) -> int:
        """Move as much as there is and fits; how many bytes."""
        size = min(self.size, len(target))
        target[:size] = self.memory[self.start : self.start + size]
        self.start += size
        return size


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor of any dtype; whoever uses it keeps the tensor."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
