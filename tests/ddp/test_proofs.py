"""Proofs: every algorithm is an all-reduce, and sums in the order in which it says it does.

The grid: 1 to 9 ranks, every way to split them over nodes, ranks numbered node by node and
scattered, three ring orders, and lengths around the number of ranks.
"""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp.algorithms import ALGORITHMS
from ddp.fabric import Fabric
from ddp.fold import fold_hierarchical, fold_ring
from ddp.replay import prove, replay
from tests.ddp.variants import (
    DTYPES,
    FOLDS,
    VARIANTS,
    Variant,
    different_schedules,
    distinct_integers,
    fabrics,
    random_floats,
    same_bytes,
)

PRIMES = (2, 3, 5, 7, 13, 61, 127)
BY_NAME = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def lengths(num_ranks, place):
    """All on the first schedule; two on each of the others, in turn."""
    numels = sorted({0, 1, num_ranks - 1, num_ranks, num_ranks + 1, *PRIMES})
    return numels if place == 0 else [numels[(2 * place + k) % len(numels)] for k in (0, 1)]


def check_sums(variant, fabric, schedule, numel, segments):
    """Exact sums of whole numbers, and the bytes of the fold for floats."""
    integers = distinct_integers(fabric.num_ranks, numel)
    total = torch.stack(integers).sum(0)
    floats = random_floats(fabric.num_ranks, numel)
    expected = variant.fold(fabric, floats, segments)
    where = (fabric.node_of, numel, segments)
    for rank, result in enumerate(replay(schedule, integers, segments)):
        assert result.equal(total), (*where, rank)
    for rank, result in enumerate(replay(schedule, floats, segments)):
        assert same_bytes(result, expected), (*where, rank)


def test_every_algorithm_that_promises_bytes_has_a_fold():
    assert set(FOLDS) == {name for name, it in ALGORITHMS.items() if it.proof == "bytes"}
    assert {variant.algorithm for variant in VARIANTS} == set(FOLDS)


@pytest.mark.parametrize("num_ranks", range(1, 10))
@BY_NAME
class TestOverTheGrid:
    def test_symbolic_proof(self, variant, num_ranks):
        for _, schedule in different_schedules(variant, num_ranks, num_scattered=4):
            prove(schedule)

    def test_integers_and_float_bytes(self, variant, num_ranks):
        found = different_schedules(variant, num_ranks)
        for place, (fabric, schedule) in enumerate(found):
            for numel in lengths(num_ranks, place):
                check_sums(variant, fabric, schedule, numel, segments=1 + (place + numel) % 4)


@given(
    variant=st.sampled_from(VARIANTS),
    node_of=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    numel=st.integers(0, 300),
    segments=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_placement_length_and_number_of_segments(variant, node_of, numel, segments):
    fabric = Fabric(tuple(node_of))
    if variant.serves(fabric):
        schedule = variant.build(fabric)
        prove(schedule)
        check_sums(variant, fabric, schedule, numel, segments)
    else:
        assert variant.algorithm == "halving_doubling"
        assert fabric.num_ranks & (fabric.num_ranks - 1)


@BY_NAME
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_every_dtype_sums_as_the_fold_does(variant, dtype):
    fabric = Fabric((0, 1, 0, 1, 1))
    if not variant.serves(fabric):
        fabric = Fabric((0, 1, 1, 1))
    buffers = random_floats(fabric.num_ranks, 23, dtype)

    expected = variant.fold(fabric, buffers, 2)

    for result in replay(variant.build(fabric), buffers, 2):
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
        for stage in Variant("hierarchical").build(fabric):
            across = [t for t in stage if not fabric.same_node(t.src, t.dst)]
            if across:
                assert Counter(node_of[t.src] for t in across) == even
                assert Counter(node_of[t.dst] for t in across) == even
                num_busy += 1
        assert num_busy == 2 * (fabric.num_nodes - 1)
