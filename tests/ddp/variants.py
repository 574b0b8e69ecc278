"""Every way to reduce that has a schedule, with its fold: the table that the proofs go through.

Also clusters to prove them on, and buffers on which no fault can hide.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp.algorithms import ALGORITHMS, RING_ORDERS
from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.fold import (
    fold_halving_doubling,
    fold_hierarchical,
    fold_hierarchical_leader,
    fold_parameter_server,
    fold_ring,
    visit,
)
from ddp.schedule import Schedule

SEED = 7
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int32, torch.int64, torch.complex64, torch.complex128),
)
Fold = Callable[[Sequence[Tensor], Fabric, "Variant", int], Tensor]

FOLDS: dict[str, Fold] = {
    "ring": lambda buffers, fabric, variant, segments: fold_ring(
        buffers, visit(fabric.node_of, variant.order, variant.seed), segments
    ),
    "hierarchical": lambda buffers, fabric, _, segments: fold_hierarchical(
        buffers, fabric.groups, segments
    ),
    "hierarchical_leader": lambda buffers, fabric, _, segments: fold_hierarchical_leader(
        buffers, fabric.groups, segments
    ),
    "halving_doubling": lambda buffers, fabric, _, segments: fold_halving_doubling(
        buffers, visit(fabric.node_of, "contiguous"), segments
    ),
    "parameter_server": lambda buffers, *_: fold_parameter_server(buffers),
}


@dataclass(frozen=True)
class Variant:
    """An algorithm, in one ring order."""

    algorithm: str
    order: str = "contiguous"

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.order}" if self.algorithm == "ring" else self.algorithm

    @property
    def seed(self) -> int:
        return SEED if self.order == "shuffled" else 0

    def build(self, fabric: Fabric) -> Schedule:
        """Raises UsageError on a fabric that the algorithm refuses."""
        build = ALGORITHMS[self.algorithm].build
        assert build is not None
        return build(fabric, self.order, self.seed)

    def fold(self, fabric: Fabric, buffers: Sequence[Tensor], segments: int) -> Tensor:
        return FOLDS[self.algorithm](buffers, fabric, self, segments)

    def serves(self, fabric: Fabric) -> bool:
        try:
            self.build(fabric)
        except UsageError:
            return False
        return True


VARIANTS = (
    *(Variant("ring", order) for order in RING_ORDERS),
    *(Variant(name) for name, it in ALGORITHMS.items() if it.build and name != "ring"),
)


def splits(num_ranks: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every multiset of node sizes that adds up to num_ranks."""
    if num_ranks == 0:
        yield ()
    for size in range(min(num_ranks, largest or num_ranks), 0, -1):
        for rest in splits(num_ranks - size, size):
            yield (size, *rest)


def fabrics(num_ranks: int, num_scattered: int = 1) -> Iterator[Fabric]:
    """Each split with ranks numbered node by node, and again with ranks and nodes scattered."""
    for sizes in splits(num_ranks):
        node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
        yield Fabric(tuple(node_of))
        for sample in range(num_scattered):
            names = random.Random(f"{sample} {sizes}").sample(range(20), len(sizes))
            scattered = [names[node] for node in node_of]
            random.Random(f"{sample} {num_ranks}").shuffle(scattered)
            yield Fabric(tuple(scattered))


def different_schedules(
    variant: Variant, num_ranks: int, num_scattered: int = 1
) -> Iterator[tuple[Fabric, Schedule]]:
    """Over the grid, without schedules that are the same on another fabric."""
    seen = set()
    for fabric in fabrics(num_ranks, num_scattered):
        if not variant.serves(fabric):
            continue
        schedule = variant.build(fabric)
        stages = tuple(schedule)
        if stages not in seen:
            seen.add(stages)
            yield fabric, schedule


def distinct_integers(num_ranks: int, numel: int) -> list[Tensor]:
    """Base 16 digits count ranks: a part lost or doubled anywhere shows, and none hides another."""
    return [(2 * torch.arange(numel) + 1) * 16**rank for rank in range(num_ranks)]


def random_floats(num_ranks: int, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Over ten powers of ten, so that nearly every other order of summing shows in the bytes."""
    generator = torch.Generator().manual_seed(numel)
    shape = (num_ranks, numel)
    values = torch.randn(shape, generator=generator)
    powers = torch.randint(-5, 5, shape, generator=generator)
    floats = values * 10.0**powers
    if dtype.is_complex:
        return [torch.complex(row, -row.flip(0)).to(dtype) for row in floats]
    return [row.clone() for row in floats.to(dtype)]


def same_bytes(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.view(torch.uint8).equal(right.view(torch.uint8))
