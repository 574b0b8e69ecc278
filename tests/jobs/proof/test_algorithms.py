"""`proof algorithms`: the grid, what is told of each algorithm, and that a wrong one is told."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ddp.algorithms
import jobs.proof.grid
from ddp import ALGORITHMS, Fabric, UsageError
from ddp.algorithms import Algorithm, ring_schedule
from ddp.schedule import Schedule, Stage
from jobs.proof import grid
from jobs.proof.algorithms import prove_algorithms
from jobs.proof.grid import Case, Result
from jobs.proof.lines import Line
from jobs.proof.variants import variants
from tests.jobs.command import call, valid

pytestmark = pytest.mark.usefixtures("forked")


EXAMPLE = f"{Path(__file__).parents[3]}/docs/own_algorithm.py:build"


def proven(own: str | None = None) -> dict[str, tuple[Line, list[Result]]]:
    found = prove_algorithms(own)
    return {variant.name: (line, list(results)) for variant, results, line in found}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.proof.grid, "MAX_RANKS", 4)


def test_the_grid_has_every_split_in_two_placements() -> None:
    placed = list(grid.placements())
    assert len(placed) == 2 * (1 + 2 + 3 + 5 + 7 + 11 + 15 + 22 + 30)
    sizes = {tuple(sorted(map(len, Fabric(each).groups))) for each in placed}
    assert {(4,), (1, 3), (2, 2), (1, 1, 2), (1, 1, 1, 1), (2, 2, 2, 2), (3, 5)} <= sizes
    tried = [case for place, each in enumerate(placed) for case in grid.cases(each, place)]
    assert {case.segments for case in tried} == {1, 2, 3, 4}
    for num_ranks in range(1, 10):
        here = [case for case in tried if len(case.node_of) == num_ranks]
        around = {0, 1, num_ranks - 1, num_ranks, num_ranks + 1, 2, 3, 5, 7, 13, 61}
        assert {case.numel for case in here} == around
        assert {case.dtype for case in here} == set(grid.DTYPES)


def test_every_algorithm_is_proven_in_every_order_and_the_example_of_ones_own_beside_ours() -> None:
    found = proven(EXAMPLE)
    assert list(found) == [*(variant.name for variant in variants()), "own_algorithm:build"]
    assert {variant.algorithm.name for variant in variants()} == set(ALGORITHMS)
    for name, (line, results) in found.items():
        assert line.first_difference is None, name
        where = [result.where for result in results]
        if name == "halving_doubling":  # on 1, 2, 4 and 8 ranks
            assert (where.count("in memory"), where.count("between 4 processes")) == (152, 30)
        elif name not in ("native", "noop"):
            assert (where.count("in memory"), where.count("between 4 processes")) == (428, 30)
            assert line.says.endswith("428 cases in memory, 30 between 4 processes")
    assert {"ring, contiguous", "ring, interleaved", "ring, shuffled", "hierarchical"} <= {*found}
    mine = found["own_algorithm:build"][0]
    assert mine.says == "exact sums: 428 cases in memory, 30 between 4 processes"
    assert found["native"][0].says == "exact sums: 6 between 4 processes"
    assert found["noop"][0].says == "nothing is sent: 6 between 4 processes"


def registered(monkeypatch: pytest.MonkeyPatch, name: str, build: Any, **more: Any) -> None:
    """An algorithm of somebody's own, beside `native`."""
    described = {"proof": "exact_integers", "max_segments": 1, **more}
    algorithm = Algorithm(name, "A test's.", build=build, **described)
    for known in list(ALGORITHMS):
        if known != "native":
            monkeypatch.delitem(ddp.algorithms.ALGORITHMS, known)
    monkeypatch.setitem(ddp.algorithms.ALGORITHMS, name, algorithm)


def ring(fabric: Fabric, _order: str, _seed: int) -> Schedule:
    return ring_schedule(range(fabric.num_ranks))


def without_the_last_stage(fabric: Fabric, order: str, seed: int) -> Schedule:
    whole = ring(fabric, order, seed)

    def stages() -> Iterator[Stage]:
        yield from list(whole)[:-1]

    return replace(whole, stages=stages)


def backwards(fabric: Fabric, _order: str, _seed: int) -> Schedule:
    return ring_schedule(range(fabric.num_ranks)[::-1])


def refusing(fabric: Fabric, order: str, seed: int) -> Schedule:
    if fabric.num_ranks & (fabric.num_ranks - 1):
        raise UsageError("powers of two only")
    return ring(fabric, order, seed)


@pytest.mark.usefixtures("small")
def test_a_schedule_that_is_no_all_reduce_is_told_with_its_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registered(monkeypatch, "mine", without_the_last_stage)
    code, out, _ = call(capsys, "proof", "algorithms", "--json")
    document = valid(out, "proof")
    by_name = {line["name"]: line for line in document["lines"]}
    assert (code, document["ok"], by_name["native"]["proven"]) == (1, False, True)
    told = by_name["mine, contiguous"]["first_difference"]
    assert re.match(r"ranks on nodes 0 0, \d+ elements, .*, in memory: ring: rank ", told)
    assert "each rank must be in it exactly once" in told


@pytest.mark.usefixtures("small")
def test_another_order_than_the_fold_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "ring", backwards, proof="bytes")
    told = str(proven()["ring, contiguous"][0].first_difference)
    case = r"ranks on nodes 0 0 0, \d+ elements, \d segments?(, \w+)?"
    assert re.match(f"{case}, in memory: rank 0, bytes: element ", told)


@pytest.mark.usefixtures("small")
def test_bytes_are_not_promised_without_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "mine", ring, proof="bytes")
    assert "there is none of that name" in str(proven()["mine, contiguous"][0].first_difference)


@pytest.mark.usefixtures("small")
def test_clusters_that_are_refused_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "mine", refusing)
    line, results = proven()["mine, contiguous"]
    assert line.proven
    assert {len(result.case.node_of) for result in results} == {1, 2, 4}


def with_the_last_stage_twice(fabric: Fabric, order: str, seed: int) -> Schedule:
    whole = ring(fabric, order, seed)
    return replace(whole, stages=lambda: [*whole, *list(whole)[-1:]])


def with_two_chunks_for_one(fabric: Fabric, order: str, seed: int) -> Schedule:
    """As good as any but for the first chunk, which goes round the ring with its double."""
    whole = ring(fabric, order, seed)
    num_chunks = whole.num_chunks + 1

    def stages() -> Iterator[Stage]:
        for stage in whole:
            doubles = [it._replace(chunk=num_chunks - 1) for it in stage if it.chunk == 0]
            yield (*stage, *doubles)

    return replace(whole, num_chunks=num_chunks, stages=stages)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (with_the_last_stage_twice, "3 stages, not the 2 of its closed form"),
        (with_two_chunks_for_one, "not 20,160 out, 20,160 in and 0 inside as its closed form"),
        (refusing, "powers of two only"),
    ],
)
def test_what_a_closed_form_does_better_is_told(
    monkeypatch: pytest.MonkeyPatch, build: Any, words: str
) -> None:
    registered(monkeypatch, "ring", build)
    rings = [variant for variant in variants() if variant.algorithm.name == "ring"]
    assert len(rings) == 3
    for variant in rings:
        told = [result.difference for result in grid.in_memory(variant) if result.difference]
        assert any(words in difference for difference in told)


@pytest.mark.usefixtures("small")
def test_all_prints_every_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registered(monkeypatch, "mine", ring)
    code, out, _ = call(capsys, "proof", "algorithms", "--all", "--json")
    names = [line["name"] for line in valid(out, "proof")["lines"]]
    assert (code, len(names), len(set(names))) == (0, len(names), len(names))
    assert "native: ranks on nodes 0 0 1 1, 5 elements, 3 segments, between 4 processes" in names
    code, out, err = call(capsys, "proof", "algorithms", "--all")
    assert (code, err) == (0, "")
    assert all(f"  proven      {name}\n" in out for name in names)


def test_all_belongs_to_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "proof", "--all")
    assert (code, out) == (2, "")
    assert "ddplab proof algorithms --all" in err


def test_a_case_says_all_that_is_needed_to_repeat_it() -> None:
    assert Case((3, 1, 3), 61, 2).words() == "ranks on nodes 3 1 3, 61 elements, 2 segments"
    assert Case((0,), 1, 1).words() == "ranks on nodes 0, 1 element, 1 segment"
    half = Case((0,), 2, 1, torch.bfloat16)
    assert half.words() == "ranks on nodes 0, 2 elements, 1 segment, bfloat16"
