"""What people are told that auto chose."""

from typing import Any

import pytest

from jobs.compare.comparison import compare
from jobs.report import compare_screen, run_screen
from jobs.wrapperwords import choice_words
from tests.jobs.compare_samples import compared
from tests.jobs.samples import flat, text_of


def plan(algorithm: str, *buckets: str) -> dict[str, Any]:
    return {"algorithm": algorithm, "buckets": [{"algorithm": each} for each in buckets]}


@pytest.mark.parametrize(
    ("buckets", "words"),
    [
        (("ring",), "ring for its bucket"),
        (("ring",) * 3, "ring for every bucket"),
        (
            ("native", *("hierarchical",) * 4),
            "hierarchical for 4 of 5 buckets, native for 1",
        ),
        (
            ("ring", "native", "star", "star"),
            "star for 2 of 4 buckets, ring for 1, native for 1",
        ),
    ],
)
def test_what_auto_chose(buckets: tuple[str, ...], words: str) -> None:
    assert choice_words(plan("auto", *buckets)) == words


def test_nothing_where_one_algorithm_was_asked_for_or_no_plan_is_known() -> None:
    assert choice_words(plan("ring", "ring")) is None
    assert choice_words(None) is None


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_screens_of_a_run_and_of_a_comparison_tell_it(width: int) -> None:
    chosen = plan("auto", "hierarchical", "native")
    runs = [
        compared("hier", (90.0, 91.0), (92.0, 90.0), run={"plan": chosen}, label="mine"),
        compared("ring", (99.0, 98.0), (97.0, 99.0)),
    ]
    mine = runs[0]
    lines = run_screen.closing_screen(mine.run, mine.figures, mine.summary, None, 900_000, width)
    words = "chose hierarchical for 1 of 2 buckets, native for 1"
    assert f"auto {words}" in flat(text_of(lines, width))
    lines = compare_screen.legend(compare(runs, "ring", alike=True), width)
    text = flat(text_of(lines, width))
    assert f"mine auto {words}" in text
    assert text.count("chose") == 1
