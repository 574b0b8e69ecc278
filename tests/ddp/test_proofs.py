"""Proofs: every algorithm is an all-reduce, and sums in the order in which it says it does.

The grid: 1 to 9 ranks, every way to split them over nodes, ranks numbered node by node and
scattered, three ring orders, and lengths around the number of ranks.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from ddp.algorithms import ALGORITHMS, RING_ORDERS, ring_for
from ddp.errors import ScheduleError
from ddp.fabric import Fabric
from ddp.fold import (
    fold_halving_doubling,
    fold_hierarchical,
    fold_hierarchical_leader,
    fold_parameter_server,
    fold_ring,
)
from ddp.replay import prove, replay
from ddp.schedule import Transfer

VARIANTS = [
    *(("ring", order) for order in RING_ORDERS),
    *((name, "contiguous") for name in ("hierarchical", "hierarchical_leader")),
    *((name, "contiguous") for name in ("halving_doubling", "parameter_server")),
]
SEED = 7


def splits(num_ranks, largest=None):
    """Every multiset of node sizes that adds up to num_ranks."""
    if num_ranks == 0:
        yield ()
    for size in range(min(num_ranks, largest or num_ranks), 0, -1):
        for rest in splits(num_ranks - size, size):
            yield (size, *rest)


def fabrics(num_ranks):
    """Each split with ranks numbered node by node, and again with ranks and nodes scattered."""
    for sizes in splits(num_ranks):
        node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
        yield Fabric(tuple(node_of))
        names = random.Random(len(sizes)).sample(range(20), len(sizes))
        scattered = [names[node] for node in node_of]
        random.Random(num_ranks).shuffle(scattered)
        yield Fabric(tuple(scattered))


def different_schedules(num_ranks, algorithm, order):
    """(fabric, schedule) over the grid, without schedules that are the same on another fabric."""
    seen = set()
    for fabric in fabrics(num_ranks):
        if algorithm == "halving_doubling" and num_ranks not in (1, 2, 4, 8):
            continue
        schedule = build(fabric, algorithm, order)
        stages = tuple(schedule)
        if stages not in seen:
            seen.add(stages)
            yield fabric, schedule


def build(fabric, algorithm, order):
    seed = SEED if order == "shuffled" else 0
    return ALGORITHMS[algorithm].build(fabric, order, seed)


def fold(fabric, algorithm, order, buffers, segments):
    if algorithm == "hierarchical":
        return fold_hierarchical(buffers, fabric.groups, segments)
    if algorithm == "parameter_server":
        return fold_parameter_server(buffers)
    if algorithm == "hierarchical_leader":
        return fold_hierarchical_leader(buffers, fabric.groups, segments)
    if algorithm == "halving_doubling":
        return fold_halving_doubling(buffers, ring_for(fabric, order), segments)
    seed = SEED if order == "shuffled" else 0
    return fold_ring(buffers, ring_for(fabric, order, seed), segments)


def distinct_integers(num_ranks, numel):
    """Base 16 digits count ranks: a part lost or doubled anywhere shows, and none hides another."""
    return [(2 * torch.arange(numel) + 1) * 16**rank for rank in range(num_ranks)]


def random_floats(num_ranks, numel, dtype=torch.float32):
    """Over ten powers of ten, so that nearly every other order of summing shows in the bytes."""
    generator = torch.Generator().manual_seed(numel)
    shape = (num_ranks, numel)
    values = torch.randn(shape, generator=generator)
    powers = torch.randint(-5, 5, shape, generator=generator)
    return [row.clone() for row in (values * 10.0**powers).to(dtype)]


def same_bytes(left, right):
    return left.dtype == right.dtype and left.view(torch.uint8).equal(right.view(torch.uint8))


@pytest.mark.parametrize("num_ranks", range(1, 10))
@pytest.mark.parametrize(("algorithm", "order"), VARIANTS)
class TestOverTheGrid:
    def test_symbolic_proof(self, algorithm, order, num_ranks):
        for _, schedule in different_schedules(num_ranks, algorithm, order):
            prove(schedule)

    def test_integers_and_float_bytes(self, algorithm, order, num_ranks):
        lengths = {num_ranks - 1, 61}
        if num_ranks < 7:
            lengths |= {0, 1, num_ranks, num_ranks + 1}
        for fabric, schedule in different_schedules(num_ranks, algorithm, order):
            for numel in sorted(lengths):
                segments = 1 + numel % 3
                integers = distinct_integers(num_ranks, numel)
                for result in replay(schedule, integers, segments):
                    assert result.equal(torch.stack(integers).sum(0)), (fabric, numel)

                floats = random_floats(num_ranks, numel)
                expected = fold(fabric, algorithm, order, floats, segments)
                for result in replay(schedule, floats, segments):
                    assert same_bytes(result, expected), (fabric, numel, segments)


@pytest.mark.parametrize(("algorithm", "order"), VARIANTS)
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.bool],
)
def test_every_dtype_sums_as_the_fold_does(algorithm, order, dtype):
    fabric = Fabric((0, 1, 0, 1) if algorithm == "halving_doubling" else (0, 1, 0, 1, 1))
    buffers = random_floats(fabric.num_ranks, 23, dtype)

    expected = fold(fabric, algorithm, order, buffers, 2)

    for result in replay(build(fabric, algorithm, order), buffers, 2):
        assert same_bytes(result, expected)


def test_the_fold_tells_orders_apart():
    buffers = random_floats(4, 64)
    folds = [
        fold_ring(buffers, (0, 1, 2, 3)),
        fold_ring(buffers, (0, 2, 1, 3)),
        fold_ring(buffers, (3, 2, 1, 0)),
        fold_ring(buffers, (0, 1, 2, 3), segments=2),
        fold_hierarchical(buffers, ((0, 1), (2, 3))),
        fold_hierarchical(buffers, ((0, 2), (1, 3))),
    ]

    for index, one in enumerate(folds):
        assert not any(same_bytes(one, other) for other in folds[:index])


@pytest.mark.parametrize("num_ranks", range(1, 10))
def test_a_hierarchy_uses_every_nic_equally_in_every_stage_that_uses_one(num_ranks):
    for fabric in fabrics(num_ranks):
        node_of = fabric.node_of
        num_shards = max(len(group) for group in fabric.groups)
        even = Counter(dict.fromkeys(node_of, num_shards))
        num_busy = 0
        for stage in build(fabric, "hierarchical", "contiguous"):
            across = [t for t in stage if not fabric.same_node(t.src, t.dst)]
            if across:
                assert Counter(node_of[t.src] for t in across) == even
                assert Counter(node_of[t.dst] for t in across) == even
                num_busy += 1
        assert num_busy == 2 * (fabric.num_nodes - 1)


# Mutants: one transfer of a small schedule is changed, at every position and in every way.

SMALL = {
    "ring of 2": (Fabric((0, 1)), "ring", "contiguous"),
    "ring of 3": (Fabric((0, 0, 1)), "ring", "contiguous"),
    "interleaved ring of 4": (Fabric((0, 0, 1, 1)), "ring", "interleaved"),
    "hierarchy of 2 and 2": (Fabric((0, 1, 0, 1)), "hierarchical", "contiguous"),
    "hierarchy of 1 and 3": (Fabric((0, 1, 1, 1)), "hierarchical", "contiguous"),
}


def mutants(schedule):
    """(what was done, to which transfer, mutant) for every single change of every transfer."""
    stages = list(schedule)
    for s, stage in enumerate(stages):
        for t, transfer in enumerate(stage):
            before, after = stage[:t], stage[t + 1 :]
            changes = [
                ("drop", [before + after] if before + after else []),
                ("double", [(*stage, transfer)]),
                ("repeat", [stage, (transfer,)]),
                *((what, [(*before, v, *after)]) for what, v in variations(schedule, transfer)),
            ]
            for what, changed in changes:
                mutated = [*stages[:s], *changed, *stages[s + 1 :]]
                yield what, transfer, replace(schedule, stages=lambda mutated=mutated: mutated)


def variations(schedule, transfer):
    src, dst, chunk, reduce = transfer.src, transfer.dst, transfer.chunk, transfer.reduce
    yield "flip", Transfer(src, dst, chunk, not reduce)
    for rank in set(range(schedule.num_ranks)) - {src}:
        yield "src", Transfer(rank, dst, chunk, reduce)
    for rank in set(range(schedule.num_ranks)) - {dst}:
        yield "dst", Transfer(src, rank, chunk, reduce)
    for other in set(range(schedule.num_chunks)) - {chunk}:
        yield "chunk", Transfer(src, dst, other, reduce)


def counts_every_rank_once(schedule):
    """A second interpreter, in plain integers: decimal places count how often a rank is in."""
    place = 10**6
    cells = {
        (rank, chunk): place**rank
        for rank in range(schedule.num_ranks)
        for chunk in range(schedule.num_chunks)
    }
    for stage in schedule.stages():
        held = dict(cells)
        for transfer in stage:
            own = cells[transfer.dst, transfer.chunk] if transfer.reduce else 0
            cells[transfer.dst, transfer.chunk] = own + held[transfer.src, transfer.chunk]
    return set(cells.values()) == {sum(place**rank for rank in range(schedule.num_ranks))}


def is_refused(schedule):
    try:
        tuple(schedule)
    except ScheduleError:
        return True
    return False


@pytest.mark.parametrize("name", SMALL)
def test_every_mutant_is_caught_unless_it_changes_no_byte(name):
    fabric, algorithm, order = SMALL[name]
    schedule = build(fabric, algorithm, order)
    floats = random_floats(schedule.num_ranks, 2003)
    expected = fold(fabric, algorithm, order, floats, 1)
    harmless = set()
    num_caught = Counter()
    for what, transfer, mutant in mutants(schedule):
        if is_refused(mutant) or not counts_every_rank_once(mutant):
            with pytest.raises(ScheduleError):
                prove(mutant)
            num_caught["proof"] += 1
            continue
        prove(mutant)  # an all-reduce still, so it must sum in another order or change nothing
        if all(same_bytes(result, expected) for result in replay(mutant, floats)):
            harmless.add((what, transfer.reduce))
        else:
            num_caught["fold"] += 1

    # a complete chunk may be copied twice, or from another rank that already has it
    assert harmless <= {("repeat", False), ("src", False)}
    assert num_caught["proof"] > num_caught["fold"]
