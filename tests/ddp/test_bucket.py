"""Buckets: views, and a status whose sum over ranks is exact in every dtype."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from ddp.bucket import (
    COLUMNS,
    FINGERPRINT_BITS,
    MULTIPLIER,
    SMALL,
    WEIGHT,
    Bucket,
    Status,
    bits_per_piece,
    fingerprint,
    status_numel,
)
from ddp.errors import PlanError
from ddp.plan import BucketLayout

DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


def make_bucket(parameters: list[Parameter], world_size: int) -> Bucket:
    dtype = parameters[0].dtype
    layout = BucketLayout(
        str(dtype).removeprefix("torch."),
        tuple(f"p{index}" for index in range(len(parameters))),
        tuple(parameter.numel() for parameter in parameters),
        segments=1,
        status_numel=status_numel(dtype, world_size),
    )
    return Bucket(0, layout, parameters, world_size)


def parameters(dtype: torch.dtype, seed: int = 0) -> list[Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Parameter(torch.randn(*shape, generator=generator).to(dtype)) for shape in ((3, 5), (7,))
    ]


def reduced(world_size: int, dtype: torch.dtype, poisoned: set[int], odd: int | None) -> Status:
    """The status that rank 0 reads; rank `odd` has other parameters."""
    buckets = [
        make_bucket(parameters(dtype, seed=int(rank == odd)), world_size)
        for rank in range(world_size)
    ]
    total: Tensor | None = None
    for rank, bucket in enumerate(buckets):
        bucket.write_status(poisoned=rank in poisoned)
        total = bucket.buffer.clone() if total is None else total + bucket.buffer
    assert total is not None
    buckets[0].buffer.copy_(total)
    return buckets[0].read_status()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 100])
def test_status_survives_the_sum(world_size: int, dtype: torch.dtype) -> None:
    assert reduced(world_size, dtype, set(), None) == Status(0, parameters_differ=False)
    everyone = set(range(world_size))
    assert reduced(world_size, dtype, everyone, None).num_poisoned == world_size
    assert reduced(world_size, dtype, {world_size - 1}, None).num_poisoned == 1
    if world_size > 1:
        assert reduced(world_size, dtype, set(), world_size - 1).parameters_differ


def test_too_many_ranks_for_the_dtype_is_refused() -> None:
    assert bits_per_piece(torch.bfloat16, 128) == 1
    with pytest.raises(PlanError, match=r"bfloat16.*300 ranks.*float32"):
        status_numel(torch.bfloat16, 300)


def test_views_are_the_buffer_and_the_mean_leaves_the_status_alone() -> None:
    bucket = make_bucket(parameters(torch.float32), world_size=4)
    assert [tuple(view.shape) for view in bucket.views] == [(3, 5), (7,)]
    bucket.gradients.copy_(torch.arange(22.0))
    bucket.write_status(poisoned=True)
    bucket.average()
    assert torch.equal(bucket.views[1], torch.arange(15.0, 22.0) / 4)
    assert bucket.buffer[22] == 1
    assert bucket.num_bytes == 22 * 4


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool], ids=str)
def test_fingerprint_sees_any_bit(dtype: torch.dtype) -> None:
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


def plain_fingerprint(tensors: list[Tensor]) -> int:
    """Word by word, in Python."""
    joined: list[Tensor] = []
    large = True
    for tensor in tensors:
        small = tensor.numel() < SMALL
        if small and not large and joined[-1].numel() < 4 * SMALL:
            joined[-1] = torch.cat([joined[-1], tensor])
        else:
            joined.append(tensor)
        large = not small
    values = [tensor.numel() for tensor in tensors]
    weights = [pow(WEIGHT, column + 1, 2**FINGERPRINT_BITS) for column in range(3 * COLUMNS)]
    for tensor in joined:
        data = bytes(tensor.view(torch.uint8).tolist())
        whole = len(data) // 8 * 8
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
        rows = len(words) // COLUMNS
        cut = (rows if rows % 2 else max(0, rows - 1)) * COLUMNS  # an odd number of rows
        sums = [sum(words[column:cut:COLUMNS]) for column in range(COLUMNS)]
        mixed = [number * WEIGHT % 2**64 for number in (*sums, *words[cut:])]
        folded = [number ^ (number - (number >> 63 << 64)) >> 32 for number in mixed]
        values.append(sum(each * weight for each, weight in zip(folded, weights, strict=False)))
        values.append(int.from_bytes(data[whole:], "little"))
    total = 0
    for value in values:
        total = (total * MULTIPLIER + value) % 2**FINGERPRINT_BITS
    return total


def test_fingerprint_is_what_it_says_and_sees_all_of_many_and_of_large_tensors() -> None:
    """Small tensors, more than are put together, around one of several rows and a part of one."""
    generator = torch.Generator().manual_seed(5)
    sizes = [3, 1, *[SMALL - 1] * 6, SMALL + 5, COLUMNS]
    tensors = [torch.randn(size, generator=generator).half() for size in sizes]
    seen = {fingerprint(tensors)}
    assert seen == {plain_fingerprint(tensors)}
    for tensor in tensors:
        words = tensor.view(torch.int16)
        for place in (0, words.numel() // 2, words.numel() - 1):
            before = words[place].clone()
            words[place] ^= 1
            seen.add(fingerprint(tensors))
            words[place] = before
    assert len(seen) == 1 + 3 * len(sizes) - 2  # of a tensor of one element all places are one


def test_fingerprint_sees_order_and_place() -> None:
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


def test_fingerprint_sees_regular_changes_in_several_places() -> None:
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
def test_fingerprint_sees_signs_that_change_everywhere_or_in_any_two_places(
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


def test_fingerprint_reads_strided_and_misaligned_tensors() -> None:
    whole = torch.randn(41)
    assert fingerprint([whole[1:]]) == fingerprint([whole[1:].clone()])
    square = torch.randn(6, 7)
    assert fingerprint([square.t()]) == fingerprint([square.t().contiguous()])
