"""The grid that every algorithm is tried on: clusters, placements and sizes, in memory.

Owns the cases and what is compared in each: the schedule counted symbolically, exact sums of whole
numbers, and for algorithms that promise bytes the bytes of the independent fold.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp import DdpError, Fabric, UsageError
from ddp.algorithms import ring_for
from ddp.fold import (
    fold_halving_doubling,
    fold_hierarchical,
    fold_hierarchical_leader,
    fold_parameter_server,
    fold_ring,
)
from ddp.replay import prove, replay
from ddp.schedule import Schedule
from jobs.proof.variants import Variant

MAX_RANKS = 8
WITH_EVERY_SIZE = 6
"""Ranks up to which every size is tried."""
LONG = 61
"""Elements of the longest buffer: more than any schedule has chunks."""

Fold = Callable[[Sequence[Tensor], Variant, Fabric, int], Tensor]

FOLDS: dict[str, Fold] = {
    "ring": lambda buffers, variant, fabric, segments: fold_ring(
        buffers, ring_for(fabric, variant.ring_order, variant.ring_seed), segments
    ),
    "hierarchical": lambda buffers, _variant, fabric, segments: fold_hierarchical(
        buffers, fabric.groups, segments
    ),
    "hierarchical_leader": lambda buffers, _variant, fabric, segments: fold_hierarchical_leader(
        buffers, fabric.groups, segments
    ),
    "halving_doubling": lambda buffers, _variant, fabric, segments: fold_halving_doubling(
        buffers, ring_for(fabric, "contiguous"), segments
    ),
    "parameter_server": lambda buffers, *_: fold_parameter_server(buffers),
}
"""What each algorithm that promises bytes is held against: ddp/fold.py, by name."""


@dataclass(frozen=True)
class Case:
    """One buffer on one cluster: `node_of[rank]` is a node."""

    node_of: tuple[int, ...]
    numel: int
    segments: int

    def words(self) -> str:
        nodes = " ".join(map(str, self.node_of))
        sizes = f"{_count(self.numel, 'element')}, {_count(self.segments, 'segment')}"
        return f"ranks on nodes {nodes}, {sizes}"


@dataclass(frozen=True)
class Result:
    case: Case
    where: str
    difference: str | None


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


def splits(num_ranks: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every multiset of node sizes that adds up to `num_ranks`."""
    if num_ranks == 0:
        yield ()
    for size in range(min(num_ranks, largest or num_ranks), 0, -1):
        for rest in splits(num_ranks - size, size):
            yield (size, *rest)


def placements() -> Iterator[tuple[int, ...]]:
    """1 to MAX_RANKS ranks, split over nodes in every way; ranks node by node, and scattered."""
    for num_ranks in range(1, MAX_RANKS + 1):
        for sizes in splits(num_ranks):
            node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
            yield tuple(node_of)
            names = random.Random(len(sizes)).sample(range(20), len(sizes))
            scattered = [names[node] for node in node_of]
            random.Random(num_ranks).shuffle(scattered)
            yield tuple(scattered)


def cases(node_of: tuple[int, ...]) -> Iterator[Case]:
    """Sizes around the number of ranks, and one that every schedule cuts into uneven chunks."""
    num_ranks = len(node_of)
    numels = {num_ranks - 1, LONG}
    if num_ranks <= WITH_EVERY_SIZE:
        numels |= {0, 1, num_ranks, num_ranks + 1}
    for numel in sorted(numels):
        yield Case(node_of, numel, 1 + numel % 3)


def in_memory(variant: Variant) -> Iterator[Result]:
    """Every case of an algorithm that has a schedule, on clusters that it does not refuse."""
    for node_of in placements():
        try:
            schedule = variant.schedule(Fabric(node_of))
        except UsageError:
            continue
        except DdpError as exc:  # it fails, which is no refusal
            yield Result(next(cases(node_of)), "in memory", str(exc))
            continue
        assert schedule is not None
        fault = _fault(schedule)
        for case in cases(node_of):
            yield Result(case, "in memory", fault or _difference(variant, schedule, case))


def _fault(schedule: Schedule) -> str | None:
    try:
        prove(schedule)
    except DdpError as exc:
        return str(exc)
    return None


def _difference(variant: Variant, schedule: Schedule, case: Case) -> str | None:
    numbers = integers(len(case.node_of), case.numel)
    total = torch.stack(numbers).sum(0)
    floats = random_floats(len(case.node_of), case.numel)
    wanted = expected(variant, case, floats)
    if isinstance(wanted, str):
        return wanted
    try:
        sums = replay(schedule, numbers, case.segments)
        results = replay(schedule, floats, case.segments)
    except DdpError as exc:
        return str(exc)
    for rank, (found, result) in enumerate(zip(sums, results, strict=True)):
        if not found.equal(total):
            return f"rank {rank}: {differs(found, total)}"
        if wanted is not None and not same_bytes(result, wanted):
            return f"rank {rank}, bytes: {differs(result, wanted)}"
    return None


def expected(variant: Variant, case: Case, buffers: Sequence[Tensor]) -> Tensor | str | None:
    """The bytes that it promises; None where it promises none; a text where nobody can tell."""
    if variant.algorithm.proof != "bytes":
        return None
    fold = FOLDS.get(variant.algorithm.name)
    if fold is None:
        return "it promises the bytes of a fold, and there is none of that name in FOLDS"
    return fold(buffers, variant, Fabric(case.node_of), case.segments)


def integers(num_ranks: int, numel: int) -> list[Tensor]:
    """Places to base 16 count ranks, so that a part lost or doubled anywhere shows."""
    return [(2 * torch.arange(numel) + 1) * 16**rank for rank in range(num_ranks)]


def random_floats(num_ranks: int, numel: int) -> list[Tensor]:
    """Over ten powers of ten, so that nearly every other order of summing shows in the bytes."""
    generator = torch.Generator().manual_seed(numel)
    values = torch.randn(num_ranks, numel, generator=generator)
    powers = torch.randint(-5, 5, (num_ranks, numel), generator=generator)
    return [row.clone() for row in values * 10.0**powers]


def same_bytes(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.view(torch.uint8).equal(right.view(torch.uint8))


def differs(found: Tensor, wanted: Tensor) -> str:
    """The first place where two buffers are not alike."""
    if found.shape != wanted.shape:
        return f"{found.numel()} elements, not {wanted.numel()}"
    place = int((found != wanted).nonzero()[0]) if not found.equal(wanted) else 0
    return f"element {place} is {found[place].item()!r}, not {wanted[place].item()!r}"
