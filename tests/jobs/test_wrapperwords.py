"""What people are told that auto chose."""

from typing import Any

import pytest

from jobs.wrapperwords import choice_words


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
