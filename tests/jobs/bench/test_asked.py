"""What a bench is asked for: contenders, exact numbers, and what does not fit a cluster."""

from typing import Any

import pytest

from cluster.nodes import NodeFacts
from ddp.fixed import in_a_row
from jobs.bench.asked import (
    DTYPES,
    WHOLE_MODULUS,
    BenchSpec,
    Contender,
    check_fits,
    contenders,
    modulus,
    needed_bytes,
    require_dtype,
)
from jobs.errors import BenchError, JobSpecError
from tests.jobs.bench.samples import HIER, MIXED, NATIVE, bench_spec

GIB = 2**30


def facts(boot_id: str = "boot", memory_bytes: int = GIB) -> NodeFacts:
    return NodeFacts("6.1", boot_id, 2, memory_bytes, "3.11", "cubic")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_ranks", [1, 2, 7, 8, 64])
def test_sums_of_numbers_below_the_modulus_are_exact(dtype: str, num_ranks: int) -> None:
    found = modulus(dtype, num_ranks)
    assert num_ranks * (found - 1) <= DTYPES[dtype].exact
    assert found <= WHOLE_MODULUS
    assert all(found % k for k in range(2, found))


def test_the_modulus_is_the_largest_prime_that_is_exact() -> None:
    assert modulus("float32", 4) == WHOLE_MODULUS
    assert modulus("bfloat16", 8) == 31
    assert modulus("bfloat16", 128) == 3
    with pytest.raises(BenchError, match="DTYPE=bfloat16 on 129 ranks") as caught:
        modulus("bfloat16", 129)
    assert caught.value.fix == ("DTYPE=float32",)


def test_every_algorithm_on_every_placement_and_rings_in_every_order() -> None:
    found = contenders(
        ["native", "ring", "native"], ["contiguous", "shuffled"], ["contiguous", "interleaved"]
    )
    named = [(each.name, each.placement) for each in found]
    one = ["native", "ring", "ring shuffled"]
    assert named == [(name, place) for place in ("contiguous", "interleaved") for name in one]


@pytest.mark.parametrize(
    ("algorithms", "orders", "placements", "message"),
    [
        (["hierarchy"], ["contiguous"], ["contiguous"], "unknown algorithm 'hierarchy'"),
        (["noop"], ["contiguous"], ["contiguous"], "adds nothing up"),
        ([], ["contiguous"], ["contiguous"], "ALGORITHMS is empty"),
        (["ring"], ["sideways"], ["contiguous"], "RING_ORDER='sideways'"),
        (["ring"], [], ["contiguous"], "RING_ORDER is empty"),
        (["ring"], ["contiguous"], ["scattered"], "PLACEMENT='scattered'"),
    ],
)
def test_contenders_that_are_none(
    algorithms: list[str], orders: list[str], placements: list[str], message: str
) -> None:
    with pytest.raises((BenchError, JobSpecError), match=message) as caught:
        contenders(algorithms, orders, placements)
    assert caught.value.rule and caught.value.fix


def test_a_type_that_is_none() -> None:
    with pytest.raises(BenchError, match="DTYPE='float16x'") as caught:
        require_dtype("float16x")
    assert caught.value.fix == ("DTYPE=float16",)


def refused(spec: BenchSpec, *shape: int, **memory: Any) -> BenchError:
    with pytest.raises(BenchError) as caught:
        check_fits(spec, *shape, [facts(**memory)] * shape[0])
    assert caught.value.rule and caught.value.fix
    return caught.value


def test_an_algorithm_that_these_ranks_cannot_do_is_refused_by_name() -> None:
    spec = bench_spec(Contender(algorithm="halving_doubling"))
    check_fits(spec, 2, 2, [facts(), facts()])
    assert refused(spec, 3, 2).message.startswith("halving_doubling: ")


def test_sizes_hold_whole_elements() -> None:
    spec = bench_spec(NATIVE, sizes=[4 << 20, 30])
    assert refused(spec, 2, 2).fix == ("SIZES=32",)


def test_buffers_fit_into_memory() -> None:
    spec = bench_spec(NATIVE, HIER, MIXED, sizes=[1 << 20, 64 << 10])
    each = (1 << 20) + in_a_row(64 << 10) * (64 << 10)
    assert needed_bytes(spec) == 3 * each + (2 << 20)
    need = 4 * needed_bytes(spec)  # two nodes of one machine
    check_fits(spec, 2, 2, [facts(memory_bytes=int(need / 0.8) + 8)] * 2)
    error = refused(spec, 2, 2, memory_bytes=int(need / 0.8) - 8)
    assert "on the 4 ranks of one machine" in error.message
    # nodes of two machines need half on each
    check_fits(spec, 2, 2, [facts(name, int(need / 1.6) + 8) for name in ("one", "two")])


def test_only_small_buffers_are_reduced_in_a_row() -> None:
    assert [in_a_row(size) for size in (16, 64 << 10, 65 << 10, 512 << 10, 1 << 20)] == [
        *(10, 10, 4, 4),
        1,
    ]
