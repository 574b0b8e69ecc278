"""Screens about links that change, at every layout: they fit, and no number is cut."""

import re
from dataclasses import replace
from typing import Any

import pytest

from cluster.lab import Lab
from cluster.linklog import LinkChange, LinkRate
from jobs.figures import run_figures
from jobs.report.lab_screens import already_up, status_screen
from jobs.report.lab_words import lab_words
from jobs.report.link_screens import (
    asked_words,
    change_line,
    changed_lines,
    changing,
    measured_first,
    stopped_lines,
    undo_words,
)
from jobs.report.parts_table import limits_words
from jobs.report.run_screen import closing_screen
from jobs.summary import summarize
from tests.jobs.samples import MS, NODES, flat, run_json, text_of, typical_ranks

WIDTHS = (80, 100, 120)


def rate(node: str, direction: str, bits_per_s: int | None) -> dict[str, Any]:
    return {"node": node, "direction": direction, "configured_bits_per_second": bits_per_s}


def split_run(node: str, bits_per_s: int | None) -> dict[str, Any]:
    """Changed during step 10 of 30; steps take 286 ms, one after the other."""
    times = {"t_ns": 10 * 286 * MS + 5, "settled_ns": 10 * 286 * MS + 50, "wall_ns": 1}
    return run_json(link_changes=[{**times, **rate(node, "out", bits_per_s)}])


def closing(width: int, run: dict[str, Any]) -> str:
    ranks = typical_ranks()
    for records in ranks:
        records.steps = [replace(it, t_ns=it.step * 286 * MS) for it in records.steps]
    prediction = {"step_seconds": 0.279, "comm_seconds": 0.17}
    figures = run_figures(ranks, NODES)
    summary = summarize(run, ranks, prediction, None)
    return text_of(closing_screen(run, figures, summary, prediction, 900_000, width), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_closing_screen_of_a_split_run_shows_its_parts(width: int) -> None:
    text = closing(width, split_run("node1", 50_000_000))
    words = flat(text)
    spread = r" +286 - 286" if width >= 100 else ""
    wait = r" +84 +69 %"  # exposed less what was waited for rank 3
    assert re.search(rf"^  1 - 10 +200 Mbit/s +286{spread}{wait}$", text, re.MULTILINE)
    limits = re.escape("200 Mbit/s, node1 50 Mbit/s")
    assert re.search(rf"^  12 - 30 +{limits} +286{spread}{wait}$", text, re.MULTILINE)
    assert "1 step during a change: in no part." in words
    assert "efficiency given for each part: the links were changed" in words
    assert "2 % under the median step of the first part" in words
    assert "link proven up to step 10; then it was changed, and not measured since" in words
    assert "(Steps 12 to 30: links were changed in this run.)" in words
    assert "carries data" not in words  # at which rate is not known


@pytest.mark.parametrize("width", WIDTHS)
def test_no_parts_where_nothing_was_changed(width: int) -> None:
    text = closing(width, run_json())
    assert "links were changed" not in flat(text)
    assert "ciency\n" not in text


def test_a_change_before_the_first_step_leaves_nothing_predicted() -> None:
    run = split_run("node1", 50_000_000)
    run["link_changes"][0] |= {"t_ns": 0, "settled_ns": 0}
    words = flat(closing(100, run))
    assert "predicted nothing: the links it was made for were changed before the first" in words
    assert "It fell between two steps." in words


def test_limits_in_words() -> None:
    alike = [rate(f"node{k}", "out", 200_000_000) for k in range(4)]
    inside = [rate(f"node{k}", "inside", None) for k in range(4)]
    assert limits_words(alike + inside) == "200 Mbit/s"
    slow = [rate("node1", "out", 50_000_000), rate("node2", "out", None)]
    assert limits_words([alike[0], *slow, alike[3], *inside]) == (
        "200 Mbit/s, node1 50 Mbit/s, node2 no limit"
    )
    three = [rate(f"node{k}", "out", 10_000_000) for k in range(4, 7)]
    assert limits_words([*alike, *three]) == "200 Mbit/s, 3 nodes 10 Mbit/s"
    narrow = [rate("node0", "inside", 10**9), *inside[1:]]
    assert limits_words([*alike, *narrow]) == "200 Mbit/s; inside no limit, node0 1 Gbit/s"


def changed_to(lab: Lab, node: str, rates: dict[str, str]) -> Lab:
    return replace(lab, spec=lab.spec.with_rates(node, rates), probe=None, changed_at=7.0)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_screens_of_link(make_lab: Any, width: int) -> None:
    lab = make_lab()
    rates = {"inter_node": "50mbit", "intra_node": "unlimited"}
    asked = asked_words("node1", rates)
    assert asked == "50 Mbit/s out of and into node1; no limit inside node1"
    first = flat(text_of(changing(lab, asked, True, width), width))
    assert first == f'Lab "default": {asked}. About 6 s. '
    assert "About" not in text_of(changing(lab, asked, False, width), width)

    measured = text_of(changed_lines(lab, "make link NODE=node1 RATE=1gbit", None, width), width)
    assert "node0 -> node1" in measured
    assert "  back    make link NODE=node1 RATE=1gbit" in measured
    assert "  next    make run JOB=hier" in measured

    stale = changed_to(lab, "node1", rates)
    user = "run 20261130-1104-hier-2x2-200mbit (process 4711)"
    busy = flat(text_of(changed_lines(stale, None, user, width), width))
    assert f"Not measured: {user} uses these links, and is split at this step." in busy
    assert "next make cluster-probe measure them" in busy
    assert "Not measured: as asked." in flat(
        text_of(changed_lines(stale, None, None, width), width)
    )
    before = flat(text_of(measured_first(stale, width), width))
    assert re.match(r"The links are measured first: they were changed at .*, not measured", before)
    assert "one of them was off" in flat(text_of(measured_first(lab, width), width))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stopped_link_says_what_stands(make_lab: Any, width: int) -> None:
    lab = make_lab()
    assert "are as they were (2x2: 2 nodes x 2 ranks, 200mbit)" in flat(
        text_of(stopped_lines(lab, lab, width), width)
    )
    other = changed_to(lab, "all", {"inter_node": "50mbit"})
    words = flat(text_of(stopped_lines(lab, other, width), width))
    assert "are changed, and not measured: make cluster-probe (2x2: 2 nodes x 2 ranks, 50" in words


def test_the_way_back(make_lab: Any) -> None:
    lab = make_lab()
    both = {"inter_node": "50mbit", "intra_node": "1gbit"}
    assert undo_words(lab, "all", both) == "make link NODE=all RATE=200mbit INTRA_RATE=unlimited"
    slow = replace(changed_to(lab, "node1", both), name="other")
    back = undo_words(slow, "node1", {"inter_node": "1gbit"})
    assert back == "make link NODE=node1 RATE=50mbit LAB=other"
    assert undo_words(slow, "all", both) is None  # one command cannot


@pytest.mark.parametrize("width", WIDTHS)
def test_a_change_among_the_lines_of_a_run(width: int) -> None:
    rates = (
        LinkRate("node1", "out", 50_000_000),
        LinkRate("node1", "in", 50_000_000),
        LinkRate("node1", "inside", None),
    )
    line = flat(text_of(change_line(LinkChange(1, 2, 3, rates), 14, width), width))
    assert line.strip() == (
        "link node1 50 Mbit/s, inside node1 no limit from here on (after step 14); not measured"
    )
    many = tuple(LinkRate(f"node{k}", "out", 10**9) for k in range(8))
    early = flat(text_of(change_line(LinkChange(1, 2, 3, many), 0, width), width))
    assert (
        early.strip() == "link 8 nodes 1 Gbit/s from here on (before the first step); not measured"
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_a_lab_whose_links_were_changed_is_shown_so_everywhere(make_lab: Any, width: int) -> None:
    stale = changed_to(make_lab(), "node1", {"inter_node": "50mbit", "intra_node": "1gbit"})
    rates = "2 nodes x 2 ranks, 200 Mbit/s; node1 50 Mbit/s; inside a node 1 Gbit/s"
    since = r"changed at .{5,25}, not measured since"
    assert re.fullmatch(rf"{rates} \({since}\)", lab_words(stale))
    status = flat(text_of(status_screen(stale, width), width))
    assert re.search(rf"{rates} \({since}\)", status)
    assert re.search(rf"Its links were {since}: make cluster-probe", status)
    again = flat(text_of(already_up(stale, width), width))
    assert re.search(rf"is already up, {since}: {rates}\.", again)
    measured = replace(stale, probe=make_lab().probe)
    assert re.search(r"\(slowest link measured 191 at ", lab_words(measured))
