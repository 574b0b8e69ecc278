"""Fingerprints: 64 bits a bucket that tell whether its parameters are the same on all ranks.

Owns how parameters are read: in every step, at many GB a second, with few calls and no new memory.

64-bit words are summed by column modulo 2**64, an odd number of rows at once, so that a change of
all signs shows. Sums are mixed, since weights alone would lose their highest bits; they are then
weighted with powers of two numbers, so that small or regular changes in several columns do not
cancel one another. What cancels within a column escapes: two of its words that have changed places,
or two of its highest bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FINGERPRINT_BITS = 64
# multipliers of generators modulo 2**64: L'Ecuyer's and Knuth's
WEIGHT, MULTIPLIER = 2862933555777941757, 6364136223846793005
COLUMNS = 1021  # prime, so that a shift by a power of two changes the column
MIN_ROWS = 7  # fewer are copied together with others, as each read in place is a call
WORD_BYTES = 8


class Fingerprints:
    """Of `groups`, the parameters of each bucket in their order, all on one device."""

    def __init__(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._groups = tuple(map(tuple, groups))
        self._tensors = [tensor for group in groups for tensor in group]
        self._seeds = [_seed(group) for group in groups]
        self._places: tuple[int, ...] | None = None
        self._values: list[int] = []
        self._fresh = False

    @torch.no_grad()
    def read(self) -> None:
        """Read all parameters as they are now, for the next `take(0)`."""
        places = tuple(tensor.data_ptr() for tensor in self._tensors)
        if places != self._places:  # some were given other memory, or this is the first time
            self._parts = _Parts.of(self._groups)
            in_place = all(tensor.is_contiguous() for tensor in self._tensors)
            self._places = places if in_place else None
        self._values = [
            (seed + total) % (1 << FINGERPRINT_BITS)
            for seed, total in zip(self._seeds, self._parts.totals(), strict=True)
        ]
        self._fresh = True

    def take(self, index: int) -> int:
        """The fingerprint of a group: as read since the last `take(0)`, or else as it is now."""
        if index == 0:
            if not self._fresh:
                self.read()
            self._fresh = False
        return self._values[index]


def fingerprint(tensors: Sequence[Tensor]) -> int:
    """Of one group, once. Changes when any bit of a tensor does, or their sizes or order do."""
    return Fingerprints([tensors]).take(0)


def _seed(group: Sequence[Tensor]) -> int:
    seed = 0
    for tensor in group:
        seed = (seed * MULTIPLIER + tensor.numel()) % (1 << FINGERPRINT_BITS)
    return seed


@dataclass(frozen=True)
class _Parts:
    """Where the words are. `matrices` are read in place; `pieces`, the rest, are copied to `loose`.

    `numbers` are what they come to: the sums of each matrix by column, group after group, then
    the words that make no row, group after group. `ends` are the places in `numbers` where the
    one or the other of a group begins and ends.
    """

    matrices: tuple[tuple[Tensor, Tensor], ...]
    pieces: tuple[Tensor, ...]
    loose: Tensor
    rests: tuple[Tensor, ...]
    numbers: Tensor
    mixed: Tensor
    weights: Tensor
    running: Tensor
    ends: Tensor
    num_sums: int

    @classmethod
    def of(cls, groups: Sequence[Sequence[Tensor]]) -> "_Parts":
        device = groups[0][0].device
        large = [[_large(tensor) for tensor in group] for group in groups]
        small = [[_content(tensor)[cut:] for tensor, cut in zip(group, cuts, strict=True)]
                 for group, cuts in zip(groups, large, strict=True)]  # fmt: skip
        words = [-(-sum(piece.numel() for piece in group) // WORD_BYTES) for group in small]
        loose = torch.zeros(sum(words), dtype=torch.int64, device=device)
        padding = torch.zeros(WORD_BYTES, dtype=torch.uint8, device=device)
        matrices: list[Tensor] = []
        pieces: list[Tensor] = []
        rests: list[Tensor] = []
        ends = [0]
        for number, group in enumerate(groups):
            for tensor, cut in zip(group, large[number], strict=True):
                if cut:
                    matrices.append(_content(tensor)[:cut].view(torch.int64).view(-1, COLUMNS))
            own = loose[sum(words[:number]) : sum(words[: number + 1])]
            rows = _rows(own.numel())
            if rows:
                matrices.append(own[: rows * COLUMNS].view(rows, COLUMNS))
            rests.append(own[rows * COLUMNS :])
            pieces += [piece for piece in small[number] if piece.numel()]
            pieces.append(padding[: -sum(p.numel() for p in small[number]) % WORD_BYTES])
            ends.append(len(matrices) * COLUMNS)
        for rest in rests:
            ends.append(ends[-1] + rest.numel())
        numbers = torch.zeros(ends[-1], dtype=torch.int64, device=device)
        num_sums = len(matrices) * COLUMNS
        sums = numbers[:num_sums].view(-1, COLUMNS)
        return cls(
            tuple(zip(matrices, sums, strict=True)),
            tuple(pieces),
            loose.view(torch.uint8),
            tuple(rests),
            numbers,
            torch.empty_like(numbers),
            torch.full_like(numbers, WEIGHT).cumprod(0),  # modulo 2**64
            torch.zeros(ends[-1] + 1, dtype=torch.int64, device=device),
            torch.tensor(ends, device=device),
            num_sums,
        )

    def totals(self) -> list[int]:
        """What the words of each group come to, as they are now."""
        torch.cat(self.pieces, out=self.loose)
        for matrix, sums in self.matrices:
            torch.sum(matrix, 0, out=sums)  # in 64 bits: of another width it would be a copy
        torch.cat(self.rests, out=self.numbers[self.num_sums :])
        numbers, mixed = self.numbers.mul_(WEIGHT), self.mixed
        torch.bitwise_right_shift(numbers, 32, out=mixed)
        mixed.bitwise_xor_(numbers).mul_(self.weights)
        torch.cumsum(mixed, 0, out=self.running[1:])
        at: list[int] = self.running[self.ends].tolist()
        num_groups = len(self.rests)
        return [
            at[number + 1] - at[number] + at[num_groups + number + 1] - at[num_groups + number]
            for number in range(num_groups)
        ]


def _content(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _large(tensor: Tensor) -> int:
    """How many of its bytes are read where they are."""
    content = _content(tensor)
    aligned = content.data_ptr() % WORD_BYTES == 0
    return _rows(content.numel() // WORD_BYTES) * COLUMNS * WORD_BYTES if aligned else 0


def _rows(num_words: int) -> int:
    """An odd number of whole rows; none where there are few."""
    rows = num_words // COLUMNS
    odd = rows if rows % 2 else rows - 1
    return odd if odd >= MIN_ROWS else 0
