"""`make lessons`: its jobs and columns are there, and a row says what a summary does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import load_job
from tools.lessons import COLUMNS, LESSONS, Lesson, Shown, Try, document, table

DOC = (Path(__file__).parents[2] / "docs" / "lessons.md").read_text()


def shown(**changes: Any) -> Shown:
    summary = {
        "error": None,
        "step_seconds": {"mean": 0.2, "median": 0.19},
        "baseline_step_seconds": {"median": 0.05},
        "phase_seconds": {"comm_exposed": 0.15},
        "overlap_ratio": 0.25,
        "inter_node_bytes_per_step": 3_468_352.0,
        "ranks_agree": True,
        "data_order": {"epochs": 1, "repeats": None},
        **changes,
    }
    job = load_job("accumulate-every").model_dump(mode="json")
    return Shown(summary, {"plan": {"buckets": [1, 2, 3]}, "job": job})


def cells(it: Shown) -> dict[str, str]:
    lesson = Lesson("All", (Try("hier"),), tuple(COLUMNS))
    head, rule, row = table(lesson, {Try("hier"): it})
    assert rule.count("---") == 1 + len(COLUMNS)
    names, found = ([cell.strip() for cell in each.split("|")[2:-1]] for each in (head, row))
    return dict(zip(names, found, strict=True))


def test_a_row_says_what_the_summary_does() -> None:
    assert list(cells(shown()).values()) == [
        *("200", "50.0", "150", "75 %", "25 %", "3.47", "12"),  # 3 buckets, 4 micro-steps
        *("equal on all ranks", "1", "comes to its end"),
    ]
    diverged = cells(shown(ranks_agree=False, data_order={"epochs": 5, "repeats": True}))
    assert diverged["parameters at the end"] == "differ between ranks"
    assert diverged["passes over the text"] == "5, each in the same order"
    other = cells(shown(data_order={"epochs": 2, "repeats": False}))
    assert other["passes over the text"] == "2, each in another order"


def test_a_run_that_failed_has_its_words_and_no_figures() -> None:
    none = {"mean": None, "median": None}
    failed = shown(
        error={"message": "rank 1: no gradient reached 'a'"},
        step_seconds=none,
        baseline_step_seconds=none,
        phase_seconds={"comm_exposed": None},
        overlap_ratio=None,
        inter_node_bytes_per_step=None,
        ranks_agree=None,
        data_order={"epochs": None, "repeats": None},
    )
    found = cells(Shown(failed.summary, {**failed.run, "plan": None}))
    assert found.pop("how it ends") == "fails: rank 1: no gradient reached 'a'"
    assert set(found.values()) == {"-"}


def test_the_document_holds_every_summary_of_every_lesson() -> None:
    tries = {each for lesson in LESSONS for each in lesson.tries}
    found = json.loads(json.dumps(document(dict.fromkeys(tries, shown()))))
    assert [each["title"] for each in found["lessons"]] == [lesson.title for lesson in LESSONS]
    runs = [run for each in found["lessons"] for run in each["runs"]]
    assert {(run["job"], *run["sets"]) for run in runs} == {(it.job, *it.sets) for it in tries}
    assert all(run["summary"]["step_seconds"]["mean"] == 0.2 for run in runs)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.title)
def test_every_lesson_is_in_the_document_with_what_to_type(lesson: Lesson) -> None:
    section = DOC.partition(f"## {lesson.title}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table_lines(section)]
    assert rows[0][1:] == list(lesson.columns)
    assert [row[0] for row in rows[2:]] == [each.words for each in lesson.tries]
    for each in lesson.tries:
        load_job(each.job, each.sets)


def table_lines(section: str) -> list[str]:
    return re.findall(r"^\|.*\|$", section, re.MULTILINE)
