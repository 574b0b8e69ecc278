"""What a node's memory allows an all-reduce at most: adding up and sharing without a message.

Every rank at once does in memory of its own what one does for its part: it adds up as many summands
and writes the sum to as many places, in one pass. Nothing that has to read all summands and to
write all results can be faster.
"""

from time import monotonic

import torch

from ddp.returning import add_and_share
from jobs.bench.ways import Place


class MemoryPass:
    """The pass over buffers of up to `most_bytes`, one on every rank of `place`."""

    def __init__(self, place: Place, most_bytes: int, dtype: torch.dtype) -> None:
        self._place = place
        self._memory = torch.zeros(most_bytes // dtype.itemsize, dtype=dtype)

    def take(self, size_bytes: int) -> tuple[float, float]:
        """When this rank began and ended one, by the clock that a node's ranks have in common; on
        memory that it has just written, as a gradient is."""
        buffer = self._memory[: size_bytes // self._memory.element_size()]
        buffer.zero_()
        part_numel = buffer.numel() // self._place.fabric.num_ranks
        part, *others = torch.split(buffer, max(1, part_numel))[: self._place.fabric.num_ranks]
        with self._place.together():
            start_s = monotonic()
            add_and_share(part, others, others)
            return start_s, monotonic()
