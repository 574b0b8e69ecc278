"""Whole numbers that tell ranks and elements apart, whose sums every type here holds exactly.

Owns what is put into buffers before an all-reduce, and the count of what is wrong after it. Both
are patterns that repeat after a prime number of elements, so that neither needs a second buffer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from jobs.bench.asked import DTYPES, modulus

ROW = 2**16  # elements that are written or compared at once, about


@dataclass(frozen=True)
class Pattern:
    """`own` is what this rank puts in, `total` the sum over all ranks; both 1-D and as long."""

    own: Tensor
    total: Tensor

    @classmethod
    def of(cls, dtype: str, rank: int, num_ranks: int) -> "Pattern":
        """Raises BenchError where the type cannot hold the sum of so many ranks."""
        prime = modulus(dtype, num_ranks)
        length = prime * -(-ROW // prime)
        parts = [_values(each, prime, length) for each in range(num_ranks)]
        total = torch.stack(parts).sum(0)
        assert int(total.max()) <= DTYPES[dtype].exact
        return cls(_typed(parts[rank], dtype), _typed(total, dtype))

    def fill(self, buffer: Tensor) -> None:
        """Puts this rank's numbers into a 1-D buffer."""
        rows, rest = _cut(buffer, len(self.own))
        rows.copy_(self.own.expand_as(rows))
        rest.copy_(self.own[: len(rest)])

    def num_wrong(self, buffer: Tensor) -> int:
        """Elements that are not the sum."""
        rows, rest = _cut(buffer, len(self.total))
        wrong = sum(int((row != self.total).sum()) for row in rows)
        return wrong + int((rest != self.total[: len(rest)]).sum())


def _values(rank: int, prime: int, length: int) -> Tensor:
    """One rank's numbers: each rank counts in strides of its own, modulo the prime."""
    places = torch.arange(1, length + 1, dtype=torch.int64)
    return (places * (rank % (prime - 1) + 1) + rank * rank).remainder_(prime)


def _typed(values: Tensor, dtype: str) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    if not kind.is_complex:
        return values.to(kind)
    real = torch.float32 if kind is torch.complex64 else torch.float64
    return torch.complex(values.to(real), values.roll(1).to(real))


def _cut(buffer: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Whole rows, (number, length), and what is left of the buffer, (elements,)."""
    whole = len(buffer) // length * length
    return buffer[:whole].view(-1, length), buffer[whole:]
