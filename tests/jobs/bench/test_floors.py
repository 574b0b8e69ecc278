"""Floors of a bench: which lab checks which, what is timed for it, and who passes."""

from typing import Any

import pytest

from cluster.spec import ClusterSpec, load_cluster
from ddp.algorithms import ALGORITHMS
from jobs.bench.asked import Contender
from jobs.bench.floors import (
    FLOORS,
    SPEED,
    check,
    check_spec,
    floors_of,
)
from jobs.bench.rows import Row, Shape
from jobs.errors import BenchError
from tests.jobs.bench.samples import AUTO, HIER, MIXED, MIXED_NATIVE, NATIVE, RING, rows

S = 32_000_000
LABS = [
    *(("2x2", rate) for rate in ("200mbit", "400mbit", "1gbit")),
    *(("2x4", rate) for rate in ("200mbit", "400mbit", "1gbit")),
    *(("4x2", "200mbit"), ("1x2", None), ("1x4", None)),
]
SHARES = {NATIVE: 1.5, RING: 1.5, HIER: 1.0, MIXED: 1.0, MIXED_NATIVE: 3.0}


def measured(spec: ClusterSpec, ms: dict[Contender, float], **more: Any) -> list[Row]:
    """Rows of all that a check times; every size takes as long as 32 MB."""
    asked = check_spec(spec, 10, 2)
    times = [[[ms[who]] * 10 for who in asked.contenders]] * len(asked.sizes_bytes)
    sent = [SHARES[who] for who in asked.contenders]
    shape = Shape(spec.nodes, spec.ranks_per_node)
    options = {"sent": sent, "limit_ms": 1360.0, **more}
    return rows(asked, times, shape, **options)


def figures(spec: ClusterSpec, found: list[Row]) -> dict[str, tuple[float, bool, bool]]:
    return {
        each.name: (each.measured, each.passes, each.reaches) for each in check(spec, found).figures
    }


def lab(shape: str, rate: str | None = None) -> ClusterSpec:
    return load_cluster(shape, rate)


GOOD = {NATIVE: 2050.0, RING: 2020.0, HIER: 1361.0}


def test_every_floor_is_of_a_lab_of_the_catalog() -> None:
    assert {(each.shape, each.rate) for each in FLOORS} == set(LABS)
    for shape, rate in LABS:
        assert floors_of(lab(shape, rate))


def test_a_good_lab_passes_and_reaches_its_targets() -> None:
    spec = lab("2x2", "200mbit")
    found = figures(spec, measured(spec, GOOD))
    assert all(passes and reaches for _, passes, reaches in found.values()), found
    ratio, _, _ = found["hierarchical over native, 32 MB"]
    assert ratio == pytest.approx(2050 / 1361)
    assert found["hierarchical, 32 MB: of wire limit"][0] == pytest.approx(1360 / 1361)
    assert check(spec, measured(spec, GOOD)).ok


@pytest.mark.parametrize(
    ("change", "more", "figure"),
    [
        ({HIER: 1440.0}, {}, "hierarchical, 32 MB: of wire limit"),
        ({NATIVE: 1960.0}, {}, "hierarchical over native, 32 MB"),
        ({RING: 2150.0}, {}, "ring over native, 32 MB"),
        ({}, {"off": 0.04}, "prediction off, from 4 MB up, median"),
        ({}, {"off": -0.09}, "prediction off, from 4 MB up, worst"),
        ({}, {"off": -0.16}, "prediction off, 64 KiB to 4 MB, worst"),
        ({}, {"sent": [1.5, 1.5, 1.02]}, "hierarchical, 32 MB: sent over least"),
    ],
)
def test_each_figure_fails_below_its_floor(
    change: dict[Contender, float], more: dict[str, Any], figure: str
) -> None:
    spec = lab("2x2", "200mbit")
    found = figures(spec, measured(spec, {**GOOD, **change}, **more))
    assert found[figure][1] is False, found
    assert not check(spec, measured(spec, {**GOOD, **change}, **more)).ok


def test_between_floor_and_target_it_passes() -> None:
    spec = lab("2x2", "200mbit")
    found = figures(spec, measured(spec, {**GOOD, HIER: 1400.0}))
    assert found["hierarchical, 32 MB: of wire limit"][1:] == (True, False)


def test_interleaved_ranks_against_native_and_against_ours() -> None:
    spec = lab("2x2", "400mbit")
    ms = {NATIVE: 1020.0, RING: 1010.0, HIER: 690.0, MIXED: 700.0, MIXED_NATIVE: 2050.0}
    found = figures(spec, measured(spec, ms, limit_ms=680.0))
    ratio = found["hierarchical over native, interleaved, 32 MB"]
    assert ratio == (pytest.approx(2050 / 700), True, False)
    slowed = found["hierarchical slowed by interleaving, 32 MB"]
    assert slowed == (pytest.approx(700 / 690 - 1), True, False)
    worse = figures(spec, measured(spec, {**ms, MIXED: 720.0}, limit_ms=680.0))
    assert worse["hierarchical slowed by interleaving, 32 MB"][1] is False


def test_one_node_needs_no_link() -> None:
    spec = lab("1x2")
    asked = check_spec(spec, 10, 2)
    assert set(asked.contenders) == {NATIVE, AUTO}
    assert asked.sizes_bytes == (64 << 10, 16_000_000)
    shape = Shape(1, 2)
    found = rows(asked, [[[20.0] * 10, [1.0] * 10]] * 2, shape, sent=[0, 0], limit_ms=None)
    assert figures(spec, found) == {
        "auto over native, 16 MB": (pytest.approx(20), True, True),
        "auto over native, 64 KiB": (pytest.approx(20), True, True),
    }


@pytest.mark.parametrize(("shape", "rate"), LABS)
def test_all_that_a_lab_needs_is_timed(shape: str, rate: str | None) -> None:
    spec = lab(shape, rate)
    asked = check_spec(spec, 10, 2)
    for floor in floors_of(spec):
        assert set(floor.measure.sizes_bytes) <= set(asked.sizes_bytes)
        assert set(floor.measure.contenders) <= set(asked.contenders)
    assert asked.contenders[0] == NATIVE
    assert asked.rounds == 10


def test_other_labs_are_named_with_the_command_that_makes_them() -> None:
    spec = lab("2x2", "200mbit")
    others = check(spec, measured(spec, GOOD)).elsewhere
    assert {(each.shape, each.rate) for each in others} <= set(LABS) - {("2x2", "200mbit")}
    by_lab = {(each.shape, each.rate): each for each in others}
    assert by_lab["2x2", "400mbit"].command == (
        "make cluster-up CLUSTER=2x2 RATE=400mbit LAB=2x2-400mbit && "
        "make bench CHECK=1 LAB=2x2-400mbit"
    )
    assert by_lab["1x4", None].command == (
        "make cluster-up CLUSTER=1x4 LAB=1x4 && make bench CHECK=1 LAB=1x4"
    )
    assert set(by_lab) == set(LABS) - {("2x2", "200mbit")}
    assert by_lab["2x2", "400mbit"].figures == (
        "hierarchical over native, interleaved, 32 MB",
        "hierarchical slowed by interleaving, 32 MB",
    )
    assert by_lab["4x2", "200mbit"].figures == (
        "hierarchical, 32 MB: of wire limit",
        "hierarchical over native, 32 MB",
    )


def test_what_every_lab_of_several_nodes_shows_is_left_to_one_of_them() -> None:
    spec = lab("1x2")
    asked = check_spec(spec, 10, 2)
    found = rows(asked, [[[20.0] * 10, [1.0] * 10]] * 2, Shape(1, 2), sent=[0, 0], limit_ms=None)
    names = [name for each in check(spec, found).elsewhere for name in each.figures]
    for name in ("ring over native, 32 MB", "prediction off, from 4 MB up, worst"):
        assert names.count(name) == 1
    at = [
        (each.shape, each.rate, name)
        for each in check(spec, found).elsewhere
        for name in each.figures
    ]
    assert len(at) == len(set(at))


@pytest.mark.parametrize(
    "spec",
    [
        lab("2x2", "300mbit"),
        lab("4x1", "200mbit"),
        lab("slow-node"),
        ClusterSpec.from_dict(
            {
                **lab("2x2", "200mbit").to_dict(),
                "links": {"inter_node": {"rate": "200mbit"}, "intra_node": {"rate": "1gbit"}},
            }
        ),
    ],
    ids=["rate", "shape", "overrides", "inside"],
)
def test_a_lab_without_floors_is_refused(spec: ClusterSpec) -> None:
    with pytest.raises(BenchError, match="no floor is of such a lab") as caught:
        check_spec(spec, 10, 2)
    assert any("CLUSTER=2x2 RATE=200mbit" in fix for fix in caught.value.fix)


def test_fewer_rounds_than_floors_are_of_are_refused() -> None:
    with pytest.raises(BenchError, match="ITERS=9"):
        check_spec(lab("2x2", "200mbit"), 9, 2)


def test_floors_are_on_the_bad_side_of_targets() -> None:
    for each in FLOORS:
        worse = each.floor >= each.target if each.at_most else each.floor <= each.target
        assert worse, each


def test_auto_is_judged_against_all_that_add_up() -> None:
    spec = lab("2x2", "1gbit")
    asked = check_spec(spec, 10, 2)
    names = [each.algorithm for each in asked.contenders]
    assert set(names) == set(ALGORITHMS) - {"noop", "parameter_server"}

    def judged(auto_ms: float, best_ms: float = 100.0) -> dict[str, tuple[float, bool, bool]]:
        ms = {"auto": auto_ms, "hierarchical": best_ms}
        times = [[[ms.get(name, 400.0)] * 10 for name in names]] * len(asked.sizes_bytes)
        return figures(spec, rows(asked, times, limit_ms=90.0))

    good = judged(101.0)
    assert good["auto over native, 16 B"] == (pytest.approx(400 / 101), True, False)
    assert good["auto against the best, 64 KiB to 64 MB, worst"][0] == pytest.approx(0.01)
    assert good["sizes at which auto is slower than native"] == (0, True, True)
    assert judged(106.0)["auto against the best, 64 KiB to 64 MB, worst"][1] is False
    assert judged(100.3)["auto behind the best, 16 B to 64 KiB, worst"][1] is False
    assert judged(500.0)["sizes at which auto is slower than native"] == (7, False, False)


def test_the_table_of_floors_is_whole() -> None:
    """The table of floors, as it was set: shape, rate, floor, target."""
    of_limit = [
        (each.shape, each.rate, each.floor, each.target)
        for each in SPEED
        if each.measure.words.endswith("of wire limit")
    ]
    assert of_limit == [
        ("2x2", "200mbit", 0.95, 0.98),
        ("4x2", "200mbit", 0.95, 0.98),
        ("2x4", "400mbit", 0.95, 0.98),
        ("2x4", "1gbit", 0.93, 0.97),
    ]
    over = [
        (each.shape, each.floor, each.target)
        for each in SPEED
        if each.measure.words == "hierarchical over native, 32 MB"
    ]
    assert over == [("2x2", 1.45, 1.50), ("2x4", 1.68, 1.75), ("4x2", 1.14, 1.17)]
