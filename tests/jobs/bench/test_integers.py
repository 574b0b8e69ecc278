"""The whole numbers that sums are checked with: exact in every type, and what they catch."""

import pytest
import torch

from jobs.bench.asked import DTYPES
from jobs.bench.integers import Pattern

NUM_RANKS = 4
NUMEL = 200_003  # three rows of the pattern and a rest


def filled(dtype: str, numel: int = NUMEL, num_ranks: int = NUM_RANKS) -> list[torch.Tensor]:
    buffers = [torch.empty(numel, dtype=getattr(torch, dtype)) for _ in range(num_ranks)]
    for rank, buffer in enumerate(buffers):
        Pattern.of(dtype, rank, num_ranks).fill(buffer)
    return buffers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_sums_are_exact_in_every_type_and_order(dtype: str, order: tuple[int, ...]) -> None:
    buffers = filled(dtype)
    total = buffers[order[0]].clone()
    for rank in order[1:]:
        total += buffers[rank]
    assert Pattern.of(dtype, 0, NUM_RANKS).num_wrong(total) == 0


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("numel", [1, 7, 65_521, 65_522])
def test_any_length_and_number_of_ranks(numel: int, num_ranks: int) -> None:
    total = torch.stack(filled("float32", numel, num_ranks)).sum(0)
    assert Pattern.of("float32", num_ranks - 1, num_ranks).num_wrong(total) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_ranks_and_neighbours_differ(dtype: str) -> None:
    one, other = filled(dtype)[:2]
    assert (one != other).float().mean() > 0.9
    assert (one[1:] != one[:-1]).float().mean() > 0.9


def test_every_wrong_element_is_counted() -> None:
    pattern, buffers = Pattern.of("float32", 0, NUM_RANKS), filled("float32")
    total = torch.stack(buffers).sum(0)
    for place in (0, 65_521, NUMEL - 1):
        total[place] += 1
    assert pattern.num_wrong(total) == 3
    twice = torch.stack([*buffers, buffers[2]]).sum(0)
    assert pattern.num_wrong(twice) > 0.99 * NUMEL
    without = torch.stack(buffers[:3]).sum(0)
    assert pattern.num_wrong(without) > 0.99 * NUMEL
    chunks = list(torch.stack(buffers).sum(0).split(NUMEL // 8))
    chunks[1], chunks[2] = chunks[2], chunks[1]
    assert pattern.num_wrong(torch.cat(chunks)) > 0.99 * 2 * (NUMEL // 8)
    assert pattern.num_wrong(torch.full_like(total, float("nan"))) == NUMEL
