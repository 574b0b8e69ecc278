"""Fingerprints of parameters: what they are, and that no change of any bit is missed."""

import itertools

import pytest
import torch
from torch import Tensor

from ddp.fingerprint import COLUMNS, MIN_ROWS, MULTIPLIER, WEIGHT, Fingerprints, fingerprint

DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool], ids=str)
def test_it_sees_any_bit(dtype: torch.dtype) -> None:
    tensor = (torch.arange(3_001) % 251).to(dtype)
    before = fingerprint([tensor])
    assert before == fingerprint([tensor.clone()])
    seen = {before}
    data = tensor.view(torch.uint8)
    places = range(0, data.numel(), 997)
    for place in places:
        data[place] ^= 1
        seen.add(fingerprint([tensor]))
        data[place] ^= 1
    assert len(seen) == 1 + len(places)
    assert fingerprint([tensor]) == before


def plain_fingerprints(groups: list[list[Tensor]]) -> list[int]:
    """Word by word, in Python."""
    sums: list[list[int]] = []
    rests: list[list[int]] = []
    for group in groups:
        contents = [bytes(tensor.view(torch.uint8).tolist()) for tensor in group]
        cuts = [8 * COLUMNS * rows_of(len(content) // 8) for content in contents]
        loose = b"".join(content[cut:] for content, cut in zip(contents, cuts, strict=True))
        loose += bytes(-len(loose) % 8)
        cut = 8 * COLUMNS * rows_of(len(loose) // 8)
        rows = [content[:cut] for content, cut in zip(contents, cuts, strict=True)]
        own = [words_of(row) for row in (*rows, loose[:cut]) if row]
        sums.append([sum(words[at::COLUMNS]) for words in own for at in range(COLUMNS)])
        rests.append(words_of(loose[cut:]))
    totals = [0] * len(groups)
    weight = 1
    for number, words in (*enumerate(sums), *enumerate(rests)):
        for word in words:
            weight = weight * WEIGHT % 2**64
            mixed = word * WEIGHT % 2**64
            totals[number] += (mixed ^ (mixed - (mixed >> 63 << 64)) >> 32) * weight
    for number, group in enumerate(groups):
        seed = 0
        for tensor in group:
            seed = (seed * MULTIPLIER + tensor.numel()) % 2**64
        totals[number] = (totals[number] + seed) % 2**64
    return totals


def rows_of(num_words: int) -> int:
    """An odd number of whole rows, at least MIN_ROWS."""
    odd = (num_words // COLUMNS - 1) // 2 * 2 + 1
    return odd if odd >= MIN_ROWS else 0


def words_of(content: bytes) -> list[int]:
    return [int.from_bytes(content[at : at + 8], "little") for at in range(0, len(content), 8)]


def test_they_are_what_they_say_and_see_all_of_many_and_of_large_tensors() -> None:
    """Tensors in place and put together, with and without bytes that fill no word and no row."""
    generator = torch.Generator().manual_seed(5)
    row = 4 * COLUMNS  # elements
    sizes = [
        [3, 1, 7 * row, 8 * row + 5, 7 * row - 1],
        [1],
        [3 * row, 3 * row + 8, 3 * row + 16, 9 * row, 2],
    ]
    groups = [[torch.randn(size, generator=generator).half() for size in group] for group in sizes]
    prints = Fingerprints(groups)
    before = [prints.take(index) for index in range(len(groups))]
    assert before == plain_fingerprints(groups)
    seen = [{value} for value in before]
    for number, group in enumerate(groups):
        for tensor in group:
            words = tensor.view(torch.int16)
            for place in (0, words.numel() // 2, words.numel() - 1):
                old = words[place].clone()
                words[place] ^= 1
                values = [prints.take(index) for index in range(len(groups))]
                seen[number].add(values[number])
                assert values[:number] + values[number + 1 :] == [
                    *before[:number],
                    *before[number + 1 :],
                ]
                words[place] = old
    # of a tensor of one element all places are one, of one of two elements two
    assert [len(values) for values in seen] == [1 + 15 - 2, 1 + 3 - 2, 1 + 15 - 1]


def test_it_is_read_when_asked_and_taken_once() -> None:
    values = torch.zeros(10)
    prints = Fingerprints([[values], [values]])
    prints.read()
    first = (prints.take(0), prints.take(1))
    values += 1
    prints.read()
    values += 1  # too late: what was read is what is taken
    second = (prints.take(0), prints.take(1))
    third = (prints.take(0), prints.take(1))  # nothing was read since: as they are now
    assert len({first[0], second[0], third[0]}) == len({first[1], second[1], third[1]}) == 3
    values -= 1
    assert (prints.take(0), prints.take(1)) == second


def test_other_memory_is_read_where_it_is() -> None:
    """`parameter.data = other` leaves the tensor the same object."""
    parameter = torch.nn.Parameter(torch.zeros(9 * COLUMNS * 2))
    prints = Fingerprints([[parameter]])
    before = prints.take(0)
    parameter.data = torch.ones_like(parameter)
    assert prints.take(0) == fingerprint([torch.ones_like(parameter)]) != before
    with torch.no_grad():
        parameter.zero_()
    assert prints.take(0) == before


def test_it_sees_order_and_place() -> None:
    one, two = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])
    alike = [
        [one, two],
        [two, one],
        [one.flip(0), two],
        [torch.cat([one, two])],
        [one],
        [one, two, torch.zeros(1)],
    ]
    assert len({fingerprint(tensors) for tensors in alike}) == len(alike)


def test_it_sees_regular_changes_in_several_places() -> None:
    """Small steps and sign flips, which a plain weighted sum lets cancel one another."""
    for dtype, bits in ((torch.float32, torch.int32), (torch.float64, torch.int64)):
        values = torch.linspace(-2.0, 5.0, 4_084, dtype=dtype)
        seen = {fingerprint([values]), fingerprint([values.neg()])}
        for size in (1, 2, 3, -1, -2, -3, 1 << 22):  # units in the last place
            for first in range(6):
                for second in range(first + 1, 7):
                    for ratio in (-3, -2, -1, 1, 2, 3):
                        moved = values.clone()
                        moved.view(bits)[first] += size
                        moved.view(bits)[second] += size * ratio
                        seen.add(fingerprint([moved]))
        for first, second in itertools.combinations(range(60), 2):
            flipped = values.clone()
            flipped[[first, second]] *= -1
            seen.add(fingerprint([flipped]))
        assert len(seen) == 2 + 7 * 21 * 6 + 60 * 59 // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16, torch.float64])
def test_it_sees_signs_that_change_everywhere_or_in_any_two_places(
    dtype: torch.dtype,
) -> None:
    """A sign is the highest bit of a word: sums of words could lose it at the top."""
    values = torch.randn(40_000, generator=torch.Generator().manual_seed(2)).to(dtype)
    parts = torch.view_as_real(values) if dtype.is_complex else values.view(-1, 2)
    seen = {fingerprint([values])}
    changes = [(slice(None), slice(None)), (slice(None), 0), (slice(None), 1)]
    changes += [([first, second], 1) for first, second in ((0, 1), (5, 700), (3, 19_999))]
    for change in changes:
        parts[change] *= -1
        seen.add(fingerprint([values]))
        parts[change] *= -1
    assert len(seen) == 1 + len(changes)


def test_it_reads_strided_and_misaligned_tensors() -> None:
    whole = torch.randn(41)
    assert fingerprint([whole[1:]]) == fingerprint([whole[1:].clone()])
    square = torch.randn(6, 7)
    assert fingerprint([square.t()]) == fingerprint([square.t().contiguous()])
