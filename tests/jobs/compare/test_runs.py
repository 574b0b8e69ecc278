"""Comparisons by the name of their folder: whatever else lies there is refused, in three parts."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.compare.runs import find_runs
from jobs.errors import CompareError


def refusal(runs: Path, document: Any) -> CompareError:
    (runs / "both").mkdir()
    (runs / "both" / "compare.json").write_text(json.dumps(document))
    with pytest.raises(CompareError) as refused:
        find_runs(runs, ["both"])
    assert refused.value.rule
    assert refused.value.fix
    return refused.value


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"folder": "both"},
        {"folder": "both", "jobs": []},
        {"folder": "both", "jobs": {"run_id": "one"}},
        {"folder": "both", "jobs": [{"run_id": "one"}, {"job": "ring"}]},
        {"folder": "both", "jobs": [{"run_id": "one"}, "two"]},
        {"folder": "copied", "jobs": [{"run_id": "one"}, {"run_id": "two"}]},
        {"jobs": [{"run_id": "one"}, {"run_id": "two"}]},
    ],
)
def test_what_no_comparison_wrote_is_refused(tmp_path: Path, document: Any) -> None:
    error = refusal(tmp_path, document)
    assert error.message == f"{tmp_path}/both/compare.json: not as make compare wrote it"
    assert error.fix == ("name the runs themselves: make runs",)


def test_a_comparison_is_made_of_runs_and_not_of_itself(tmp_path: Path) -> None:
    error = refusal(tmp_path, {"folder": "both", "jobs": [{"run_id": "both"}]})
    assert error.message == f"both: no run of this folder's {tmp_path}/"


def test_a_run_that_was_cleaned_away_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, {"folder": "both", "jobs": [{"run_id": "gone"}]})
    assert error.message == f"gone: no run of this folder's {tmp_path}/"
