"""Buckets: views, and a status whose sum over ranks is exact in every dtype."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from ddp.bucket import Bucket, Status, bits_per_piece, fingerprint, status_numel
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


def test_fingerprint_reads_strided_and_misaligned_tensors() -> None:
    whole = torch.randn(41)
    assert fingerprint([whole[1:]]) == fingerprint([whole[1:].clone()])
    square = torch.randn(6, 7)
    assert fingerprint([square.t()]) == fingerprint([square.t().contiguous()])
