"""`make bench-ddp`: its arithmetic, what passes and fails, and its ranks, small, on loopback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tools import front
from tools.bench_ddp import bound, table
from tools.bench_ddp.__main__ import conclude, main
from tools.bench_ddp.figures import (
    Figure,
    overlap_efficiency,
    pipeline_bound_s,
    ratios,
    slowest,
    spread,
)
from tools.verbs import arguments


@pytest.mark.parametrize(
    ("backward_s", "first_ready_s", "buckets_s", "wanted_s"),
    [
        (10, 2, (3, 3, 3), 1 + 13),  # backward is the longer one
        (10, 2, (5, 5, 5), 1 + 17),  # the link is
        (10, 2, (4, 4, 3), 1 + 13),  # both
        (10, 10, (7,), 1 + 17),  # one bucket: nothing is hidden
    ],
)
def test_the_bound_is_the_longer_of_two_ways(
    backward_s: float, first_ready_s: float, buckets_s: tuple[float, ...], wanted_s: float
) -> None:
    assert pipeline_bound_s(1, backward_s, first_ready_s, buckets_s) == wanted_s


def test_efficiency_is_the_part_of_what_can_be_saved() -> None:
    assert overlap_efficiency(20, 12, 12) == 1
    assert overlap_efficiency(20, 20, 12) == 0
    assert overlap_efficiency(20, 14, 12) == 0.75
    assert overlap_efficiency(20, 22, 12) == -0.25
    with pytest.raises(ValueError, match="nothing to hide"):
        overlap_efficiency(12, 11, 12)


@pytest.mark.parametrize(
    ("values", "more_is_better", "passes", "verdict"),
    [
        ((1.0, 1.02, 9.0), False, True, "target reached"),
        ((1.03, 1.03, 1.03), False, True, "passes"),
        ((1.0, 1.05, 9.0), False, True, "passes"),
        ((1.0, 1.06, 9.0), False, False, "UNDER THE FLOOR"),
        ((9.0, 1.06, 0.1), True, True, "target reached"),
        ((9.0, 1.03, 0.1), True, False, "UNDER THE FLOOR"),
    ],
)
def test_the_median_is_held_against_floor_and_target(
    values: tuple[float, ...], more_is_better: bool, passes: bool, verdict: str
) -> None:
    floor, target = (1.05, 1.06) if more_is_better else (1.05, 1.02)
    figure = Figure("it", values, floor, target, more_is_better, " x")
    assert figure.passes is passes
    assert figure.row().endswith(f" | {verdict} |")


def test_a_row_says_all_and_a_figure_without_a_floor_always_passes() -> None:
    values = [float(value) for value in range(1, 12)]
    assert spread(values) == (2, 10)
    assert spread([3.0]) == (3, 3)
    row = "| a | at least 3 x | at least 5 x | 6.00 x (2.00 x - 10.00 x) | target reached |"
    assert Figure("a", values, 3, 5, more_is_better=True, unit=" x").row() == row
    only_told = Figure("b", [0.001])
    assert only_told.passes
    assert only_told.row() == "| b |  |  | 0.00 (0.00 - 0.00) |  |"


def test_rounds_are_compared_one_by_one_as_the_slowest_rank_saw_them() -> None:
    assert slowest([[1, 5, 2], [3, 4, 1]]) == [3, 5, 2]
    assert ratios([2, 3], [4, 2]) == [0.5, 1.5]


def step(
    step_s: float, call_s: float = 0, backward_s: float = 0, first_ready_s: float = 0, *b: float
) -> dict[str, Any]:
    names = ("step_s", "call_s", "backward_s", "first_ready_s", "buckets_s")
    return dict(zip(names, (step_s, call_s, backward_s, first_ready_s, list(b)), strict=True))


def told(buckets: list[int] | None = None) -> list[dict[str, Any]]:
    """Two ranks, two rounds; the second rank is the slower one in the second round."""

    def variant(first: Any, second: Any, sizes: list[int]) -> dict[str, Any]:
        return {"steps": [first, second], "bucket_bytes": sizes}

    def rank(late: float, pairs: list[tuple[float, float]]) -> dict[str, Any]:
        return {
            "speed": {
                "stock": variant(step(10), step(10 + late), [8, 8]),
                "native": variant(step(11), step(11 + late), buckets or [8, 8]),
                # outside 2, backward 10, buckets 4 and 4: bound 2 + max(14, 3 + 8) = 16
                "after": variant(step(20, 18, 10, 10, 4, 4), step(20, 18, 10, 10, 4, 4), [8, 8]),
                "overlap": variant(step(16, 0, 0, 3), step(17 + late, 0, 0, 3), [8, 8]),
                "stock, short": variant(step(9), step(9), [8, 8]),
                "hierarchical, short": variant(step(6), step(6), [8, 8]),
            },
            "deep": {
                "bucketed": variant(step(2), step(2), [9]),
                "per parameter": variant(step(8), step(12), [3, 3, 3]),
            },
            "checks": {"paced": pairs, "busy": [(2 * with_s, out_s) for with_s, out_s in pairs]},
        }

    return [rank(0, [(50.5, 50), (51, 51)]), rank(1, []), rank(0, [(50, 49), (51.51, 50)])]


def test_figures_follow_from_what_ranks_told() -> None:
    native, overlap, buckets, hierarchical = table.speed(told())
    assert native.values == [1.1, 12 / 11]
    assert overlap.values == [1.0, 0.5]
    assert (buckets.values, buckets.name[:9]) == ([4.0, 6.0], "3 tensors")
    assert (hierarchical.values, hierarchical.floor) == ([1.5, 1.5], None)
    limits = [(each.floor, each.target, each.more_is_better) for each in (native, overlap, buckets)]
    assert limits == [(1.05, 1.02, False), (0.85, 0.95, True), (3, 5, True)]
    paced, busy = table.checks(told())
    assert paced.values == pytest.approx([1.0, 1.0])  # the slowest rank's, with and without
    assert busy.values == pytest.approx([102.0, 102.0])
    assert (paced.floor, paced.target, paced.unit) == (2, 1, " %")
    assert (busy.floor, busy.target) == (None, None)
    memory = table.memory([110, 90], [100, 100])
    assert (memory.values, memory.floor, memory.target) == ([1.1, 0.9], 1.15, 1.05)


def test_a_bound_step_is_held_against_the_best_of_stock() -> None:
    """As the slowest rank saw each; the best is the one whose median is the shortest."""

    def rank(late: float) -> dict[str, Any]:
        took = {"hierarchical": (2, 2 + late), "stock, 1": (4, 3), "stock, 4": (3, 3.5)}
        return {
            each.name: {"steps": [step(s) for s in took.get(each.name, (5, 5))]}
            for each in (bound.OURS, *bound.STOCK)
        }

    first, second = (bound.figure(shape, [rank(0), rank(0.5)]) for shape in bound.SHAPES)
    assert "(bucket_cap_mb=4) on 2x2 at 200mbit" in first.name
    assert first.values == [1.5, 1.4]
    assert (first.floor, first.target, first.more_is_better) == (1.40, 1.48, True)
    assert (second.floor, second.target) == (1.60, 1.72)
    assert "on 2x4" in second.name
    assert [each.bucket_mb for each in bound.STOCK] == [None, 1, 4, 25]
    assert bound.OURS.bucket_mb is None  # the wrapper's own default


def test_other_buckets_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"native has buckets of \[16\] bytes, stock of \[8, 8\]"):
        table.speed(told([16]))


def test_a_module_is_given_what_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _path, words, _environment: called.append(words))
    assert arguments("bench-ddp", {"CHECK": "1"}) == ["--check"]
    front.become(Path("/env"), "bench-ddp", {"CHECK": "1"})
    front.become(Path("/env"), "check", {"TORCH": "x"})
    python = "/env/bin/python"
    assert called[0] == [python, "-m", "tools.bench_ddp", "--check"]
    assert called[1] == [python, "-m", "tools.check"]


@pytest.mark.parametrize("words", [["--chekc"], ["--check", "--check"], ["x\ny"], [""]])
def test_words_that_cannot_be_meant_start_nothing(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bench-ddp: ") and "nothing, or --check" in err


@pytest.mark.parametrize(("check", "worst", "code"), [(1, 9, 1), (1, 2, 0), (0, 9, 0)])
def test_only_a_check_fails_and_says_where(
    capsys: pytest.CaptureFixture[str], check: int, worst: float, code: int
) -> None:
    figures = [Figure("good", [1], 2, 1), Figure("bad", [worst], 2, 1), Figure("told", [worst])]
    assert conclude(figures, check=bool(check)) == code
    wanted = "Under the floor: bad." if worst == 9 else "No figure is under its floor."
    assert capsys.readouterr().out.strip() == wanted
