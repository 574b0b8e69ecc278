"""The grid that every algorithm is tried on: clusters, placements and sizes, in memory.

Owns the cases and what is compared in each: the schedule counted symbolically, exact sums of whole
numbers, and for algorithms that promise bytes the bytes of the independent fold, in several dtypes,
and the stages and traffic of their closed forms.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp import DdpError, Fabric, UsageError
from ddp.closed import CLOSED_FORMS, Uniform, price_uniform
from ddp.cost import NodeTraffic, traffic
from ddp.fabric import Link, NodeLinks
from ddp.fold import (
    fold_halving_doubling,
    fold_hierarchical,
    fold_hierarchical_leader,
    fold_parameter_server,
    fold_ring,
    visit,
)
from ddp.replay import prove, replay
from ddp.schedule import Schedule
from jobs.proof.variants import Variant

MAX_RANKS = 9
PRIMES = (2, 3, 5, 7, 13, 61)
"""Elements, beside those around the number of ranks; the last is more than most schedules cut."""
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.complex64)
"""Of the buffers that are held against the fold, in turn."""
FEW = 5
"""Ranks from which there are so many clusters that two lengths on each are all lengths."""
EVEN = 5040
"""Elements for each rank, which every schedule here cuts into chunks alike."""

ANY_LINKS = NodeLinks(*[Link(0.0, 1.0)] * 3)

Fold = Callable[[Sequence[Tensor], Variant, Fabric, int], Tensor]

FOLDS: dict[str, Fold] = {
    "ring": lambda buffers, variant, fabric, segments: fold_ring(
        buffers, visit(fabric.node_of, variant.ring_order, variant.ring_seed), segments
    ),
    "hierarchical": lambda buffers, _variant, fabric, segments: fold_hierarchical(
        buffers, fabric.groups, segments
    ),
    "hierarchical_leader": lambda buffers, _variant, fabric, segments: fold_hierarchical_leader(
        buffers, fabric.groups, segments
    ),
    "halving_doubling": lambda buffers, _variant, fabric, segments: fold_halving_doubling(
        buffers, visit(fabric.node_of, "contiguous"), segments
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
    dtype: torch.dtype = torch.float32

    def words(self) -> str:
        nodes = " ".join(map(str, self.node_of))
        sizes = f"{_count(self.numel, 'element')}, {_count(self.segments, 'segment')}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"ranks on nodes {nodes}, {sizes}" + (f", {dtype}" if dtype != "float32" else "")


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


def cases(node_of: tuple[int, ...], place: int) -> list[Case]:
    """A few lengths for the cluster at this place of the grid; its neighbours have the others."""
    num_ranks = len(node_of)
    num_cases = 4 if num_ranks < FEW else 2
    numels = sorted({0, 1, num_ranks - 1, num_ranks, num_ranks + 1, *PRIMES})
    found = []
    for turn in range(num_cases * place, num_cases * (place + 1)):
        dtype = DTYPES[turn % len(DTYPES)]
        found.append(Case(node_of, numels[turn % len(numels)], 1 + turn % 4, dtype))
    return found


def in_memory(variant: Variant) -> Iterator[Result]:
    """Every case of an algorithm that has a schedule, on clusters that it does not refuse."""
    for place, node_of in enumerate(placements()):
        fabric, tried = Fabric(node_of), cases(node_of, place)
        try:
            schedule = variant.schedule(fabric)
        except DdpError as exc:
            if not isinstance(exc, UsageError) or _takes(variant, fabric):  # that is no refusal
                yield Result(tried[0], "in memory", str(exc))
            continue
        assert schedule is not None
        fault = _fault(schedule) or _waste(variant, schedule, fabric)
        for case in tried:
            yield Result(case, "in memory", fault or _difference(variant, schedule, case))


def _takes(variant: Variant, fabric: Fabric) -> bool:
    """Whether it has a closed form for so many ranks."""
    form = CLOSED_FORMS.get(variant.algorithm.name)
    return form is not None and form.fits(Uniform(fabric.num_ranks, 1, ANY_LINKS)) is None


def _fault(schedule: Schedule) -> str | None:
    try:
        prove(schedule)
    except DdpError as exc:
        return str(exc)
    return None


def _waste(variant: Variant, schedule: Schedule, fabric: Fabric) -> str | None:
    """Where its closed form, on nodes of one size, has other stages or bytes."""
    title = variant.title
    if title not in CLOSED_FORMS:  # of a ring in any order: what each rank sends, as if on a node
        title, fabric = variant.algorithm.name, Fabric(tuple(range(fabric.num_ranks)))
    form = CLOSED_FORMS.get(title)
    smallest, largest = min(map(len, fabric.groups)), max(map(len, fabric.groups))
    if form is None or smallest < largest:
        return None
    numel = EVEN * fabric.num_ranks
    cluster = Uniform(fabric.num_nodes, largest, ANY_LINKS)
    num_stages = sum(kind.count for kind in form.kinds(cluster, numel))
    if (found := len(list(schedule))) != num_stages:
        return f"{found} stages, not the {num_stages} of its closed form"
    wanted = price_uniform(title, cluster, numel).traffic[0]
    nodes = traffic(schedule, fabric, numel, 1).values()
    busiest = max(nodes, key=lambda node: (node.out_bytes, node.intra_bytes))
    if busiest != wanted:
        sent = f"the busiest node moves {_sent(busiest)}, not {_sent(wanted)} as its closed form"
        return f"of {numel:,} bytes {sent}"
    return None


def _sent(node: NodeTraffic) -> str:
    return f"{node.out_bytes:,} out, {node.in_bytes:,} in and {node.intra_bytes:,} inside"


def _difference(variant: Variant, schedule: Schedule, case: Case) -> str | None:
    numbers = integers(len(case.node_of), case.numel)
    total = torch.stack(numbers).sum(0)
    floats = random_floats(len(case.node_of), case.numel, case.dtype)
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


def random_floats(num_ranks: int, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Over ten powers of ten, so that nearly every other order of summing shows in the bytes."""
    generator = torch.Generator().manual_seed(numel)
    values = torch.randn(num_ranks, numel, generator=generator)
    powers = torch.randint(-5, 5, (num_ranks, numel), generator=generator)
    floats = values * 10.0**powers
    if dtype.is_complex:
        floats = torch.complex(floats, -floats.flip(1))
    return [row.clone() for row in floats.to(dtype)]


def same_bytes(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.view(torch.uint8).equal(right.view(torch.uint8))


def differs(found: Tensor, wanted: Tensor) -> str:
    """The first place where two buffers are not alike."""
    if found.shape != wanted.shape:
        return f"{found.numel()} elements, not {wanted.numel()}"
    place = int((found != wanted).nonzero()[0]) if not found.equal(wanted) else 0
    return f"element {place} is {found[place].item()!r}, not {wanted[place].item()!r}"
