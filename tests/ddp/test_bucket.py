"""Buckets: views, and a status whose sum over ranks is exact in every dtype."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from ddp.bucket import Bucket, Status, bits_per_piece, status_numel
from ddp.errors import PlanError
from ddp.fingerprint import Fingerprints
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
    buffer = torch.zeros(layout.numel, dtype=parameters[0].dtype)
    return Bucket(0, layout, parameters, world_size, Fingerprints([parameters]), buffer)


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
