"""The screens of `make proof`, at every layout: they fit, nothing is cut, differences are loud."""

from dataclasses import replace

import pytest

from jobs.proof.lesson import Table, TableRow
from jobs.proof.lines import Line
from jobs.report.proof_screen import (
    algorithms_header,
    case_screen,
    closing,
    lesson_header,
    proof_lines,
    table_screen,
)
from jobs.report.text import BAD
from tests.jobs.samples import text_of

WIDTHS = (80, 100, 120)
GOOD = "9f3a21c70b12"
ROW = TableRow(1, 0.7392881512, 0.7392881363, GOOD, (GOOD,) * 4)
DRIFTED = replace(ROW, step=2, sums=(GOOD, GOOD, "0123456789ab", GOOD))
OFF = replace(ROW, step=16, loss_ranks=123.4567891)
LOST = replace(ROW, step=3, loss_ranks=float("nan"))
LONG = Line(
    "an algorithm of my own, interleaved",
    "exact sums, and the bytes of the fold: 12,345 cases in memory, 30 between 4 processes",
    "ranks on nodes 0 0 0 1 1 2 2 3, 61 elements, 2 segments, in memory: rank 7, bytes: element 60 "
    "is -12345.67890625, not -12345.6796875",
)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_fits_and_cuts_nothing(width: int) -> None:
    screen = table_screen(Table((ROW, DRIFTED, OFF, LOST), 1633), width)
    lines = text_of(screen, width).splitlines()
    rows = [line.split() for line in lines[2:6]]
    assert rows == [
        ["1", "0.739288", "0.739288", "1.5e-08", GOOD, GOOD, "yes"],
        ["2", "0.739288", "0.739288", "1.5e-08", GOOD, "0123456789ab", "NO"],
        ["16", "0.739288", "123.456789", "1.2e+02", GOOD, GOOD, "NO"],
        ["3", "0.739288", "nan", "nan", GOOD, GOOD, "NO"],
    ]
    assert [line.style for line in screen[2:6]] == ["", BAD, BAD, BAD]
    assert "1,633 parameters" in " ".join(" ".join(lines).split())


def test_the_first_difference_of_the_table_is_its_lines() -> None:
    assert Table((ROW, ROW), 9).line().proven
    assert Table((ROW, DRIFTED, OFF), 9).line().first_difference == (
        f"step 2: rank 2 holds parameters 0123456789ab, one process {GOOD}"
    )
    assert Table((ROW, OFF), 9).line().first_difference == (
        "step 16: loss 123.456789 on the ranks, 0.739288 in one process"
    )
    assert not Table((LOST,), 9).line().proven


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_fit_and_say_which_thing_is_not_so(width: int) -> None:
    proven = proof_lines(replace(LONG, first_difference=None), width)
    wrong = proof_lines(LONG, width)
    for screen in (proven, wrong, lesson_header(width), algorithms_header(width)):
        assert max(len(line.plain) for line in screen) <= width
    text = " ".join(text_of(proven, width).split())
    assert text.startswith("proven an algorithm of my own, interleaved exact sums, and the bytes")
    assert "Not so" not in text
    text = " ".join(text_of(wrong, width).split())
    assert text.startswith("NOT PROVEN an algorithm of my own, interleaved exact sums")
    assert text.endswith("element 60 is -12345.67890625, not -12345.6796875")
    assert {line.style for line in wrong} == {BAD}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_end_counts_and_names_the_next_word(width: int) -> None:
    following = "make proof algorithms     every algorithm, on a grid of clusters"
    many = [replace(LONG, name=f"line {number}") for number in range(12)]
    good = replace(LONG, first_difference=None)
    for lines in (many, [good], [good, good]):
        assert max(len(line.plain) for line in closing(lines, following, width)) <= width
    assert "\nAll 2 lines proven.\n  next    make proof algorithms" in text_of(
        closing([good, good], following, width), width
    )
    text = " ".join(text_of(closing([good, *many], following, width), width).split())
    assert text.startswith("12 of 13 lines NOT PROVEN: line 0; line 1; ")


def test_a_case_is_one_line() -> None:
    assert len(case_screen(LONG, 80)) == 1
    text = case_screen(LONG, 80)[0].plain
    assert text.startswith("  NOT PROVEN  an algorithm of my own, interleaved: ranks on nodes 0 0")
