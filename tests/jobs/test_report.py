"""Numbers, tables, lab and error screens, at every layout: they fit, and no number is cut."""

import re
from dataclasses import replace
from typing import Any

import pytest

from cluster.backends import Chosen
from cluster.errors import ClusterError
from cluster.netns import NETNS
from jobs.errors import RunFailed
from jobs.report.errors import error_screen
from jobs.report.lab_screens import (
    already_up,
    coming_up,
    down_line,
    links_table,
    ready_lines,
    status_screen,
    step_line,
)
from jobs.report.lab_words import rate_words
from jobs.report.runs_table import runs_table
from jobs.report.table import Column, table
from jobs.report.text import (
    layout,
    milliseconds,
    percent,
    plain,
    round_to_sum,
    rounded_ms,
    significant,
)
from jobs.summary import summarize
from tests.jobs.samples import flat, run_json, text_of, typical_ranks

WIDTHS = (80, 100, 120)


def test_numbers_add_up_after_rounding() -> None:
    assert round_to_sum([1, 1, 1], 100) == [34, 33, 33]
    assert round_to_sum([0.5, 0.25, 0.25], 100) == [50, 25, 25]
    assert round_to_sum([0, 0], 100) == [0, 0]
    assert rounded_ms([0.0614, 0.1224, 0.0164]) == (["61", "122", "17"], "200")
    assert rounded_ms([0.00614, 0.01224]) == (["6.1", "12.3"], "18.4")


def test_numbers_show_three_digits() -> None:
    assert [significant(value) for value in (3.4722, 23.9, 191.3, 7160.4, 0.87)] == [
        "3.47",
        "23.9",
        "191",
        "7,160",
        "0.87",
    ]
    assert (milliseconds(0.286), milliseconds(0.0286), milliseconds(0.00286)) == (
        "286 ms",
        "28.6 ms",
        "2.86 ms",
    )
    assert percent(0.6923) == "69 %"


def test_a_layout_never_exceeds_the_terminal() -> None:
    assert [layout(width) for width in (40, 80, 99, 100, 119, 120, 400)] == [
        80,
        80,
        80,
        100,
        100,
        120,
        120,
    ]


def test_a_table_drops_columns_and_cuts_names_but_never_numbers() -> None:
    columns = [
        Column(("name",), right=False, cut=6),
        Column(("bytes",)),
        Column(("more",), from_width=100),
    ]
    rows = [["n" * 90, "123,456,789", "987,654,321"]]
    narrow, wide = table(columns, rows, 80), table(columns, rows, 120)
    assert "987,654,321" not in narrow[1]
    assert narrow[1].endswith("123,456,789")
    assert "nnn..." in narrow[1]
    assert len(narrow[1]) == 80
    assert wide[1].endswith("123,456,789  987,654,321")
    assert "n" * 90 in wide[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_links_of_a_lab(make_lab: Any, width: int) -> None:
    lab = make_lab()
    text = text_of(links_table(lab, width), width)
    row = next(line for line in text.splitlines() if line.startswith("  node0 -> node1"))
    expected = ["node0", "->", "node1", "200", "191.3", "191.3", "100", "%", "187.5"]
    trip = ["0.20"] if width >= 100 else []
    assert row.split() == [*expected, "98", "%", *trip, "ok"]
    inside = next(line for line in text.splitlines() if line.startswith("  inside node1"))
    assert inside.split()[:5] == ["inside", "node1", "none", "-", "5,600"]
    assert inside.endswith("29 x")
    assert "191.3 Mbit/s = 23.9 MB/s" in flat(text)


def test_a_link_that_carries_too_little_is_loud(make_lab: Any) -> None:
    lab = make_lab()
    assert lab.probe is not None
    bad = replace(lab.probe.links[0], measured_bytes_per_second=2e7, ratio=0.84)
    probe = replace(lab.probe, links=(bad, *lab.probe.links[1:]))
    rows = plain(links_table(replace(lab, probe=probe), 100)).splitlines()
    assert next(row for row in rows if "node0 -> node1" in row).endswith("NOT OK")
    assert next(row for row in rows if "node1 -> node0" in row).endswith("ok")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_lab_comes_up_and_goes(make_lab: Any, width: int) -> None:
    lab = make_lab()
    first = flat(text_of(coming_up("default", lab.spec, Chosen(NETNS), True, width), width))
    assert 'Lab "default": 2 nodes x 2 ranks, in network namespaces on this machine' in first
    assert "(BACKEND=netns)" in first
    limit = flat(text_of(step_line("limit", 0.12, lab.spec, width), width))
    assert "200 Mbit/s out of and into each node; read back" in limit
    assert limit.endswith("0.1 s")
    ready = flat(text_of(ready_lines(lab, 6.04, 8, width), width))
    assert "Ready in 6.0 s. 8 cores for 4 ranks: enough." in ready
    assert "ranks take turns" in flat(text_of(ready_lines(lab, 6.04, 2, width), width))
    assert 'Lab "default" is already up, measured at' in flat(
        text_of(already_up(lab, width), width)
    )
    assert "node1 127.0.0.1" in text_of(status_screen(lab, width), width)
    assert 'Lab "default" is down' in text_of(down_line(lab, None, width), width)
    ended = text_of(down_line(lab, "run r1 (process 71)", width), width)
    assert "run r1 (process 71)" in ended


def test_a_lab_that_was_not_measured_says_so(make_lab: Any) -> None:
    text = plain(status_screen(make_lab(probed=False), 100))
    assert "(not measured)" in text
    assert "make cluster-probe" in text


def test_rates_are_words() -> None:
    assert [rate_words(rate) for rate in (200_000_000, 2_500_000_000, 1_500_000, None)] == [
        "200 Mbit/s",
        "2.5 Gbit/s",
        "1.5 Mbit/s",
        "no limit",
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_an_error_has_its_three_parts(width: int) -> None:
    error = ClusterError(
        "this Ubuntu does not let user mei make a private network",
        "to create network cards in a namespace of our own; " * 3,
        ["sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0", "BACKEND=compose"],
        seen="ip link add: Operation not permitted\nsecond line",
    )
    text = text_of(error_screen(error, width), width)
    assert text.startswith("ddplab: this Ubuntu")
    assert "\n  seen    ip link add" in text
    assert "\n          second line" in text
    assert "\n  rule    to create" in text
    assert "\n  fix     one of:\n            sudo sysctl" in text
    single = plain(error_screen(RunFailed("it broke", fix="make cluster-up"), width))
    assert single == "ddplab: it broke\n  fix     make cluster-up"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_runs(width: int) -> None:
    summary = summarize(run_json(), typical_ranks(), None, None)
    long_name = "20261130-1104-" + "a-very-long-name-" * 5
    rows = [
        {"run_id": "r1", "job": "hier", "lab": "default", "state": "ok", "summary": summary},
        {"run_id": long_name, "job": "x" * 60, "lab": "l", "state": "ok", "summary": summary},
        {"run_id": "r2", "job": "ring", "lab": "default", "state": "killed", "summary": None},
    ]
    text = text_of(runs_table(rows, width), width)
    lines = text.splitlines()
    for row in lines[2:4]:
        assert re.search(r" 30 +286 ms +69 %", row)
        assert row.endswith("ok")
    assert ("2.670" in lines[2]) == (width == 120)
    assert lines[4].split()[-4:] == ["-", "-", "-", "killed"]


def test_no_runs_yet() -> None:
    assert "make run JOB=hier" in plain(runs_table([], 100))
