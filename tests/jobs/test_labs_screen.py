"""The screen and the JSON of all labs, at every layout: they fit, and no number is cut."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import cluster.survey
from cluster.lab import Lab
from cluster.state import Activity
from cluster.survey import Condition, Sighting
from jobs.report.labs_screen import age, doing, labs_screen, process_of
from tests.jobs.command import call, valid
from tests.jobs.conftest import cluster_spec
from tests.jobs.samples import text_of

WIDTHS = (80, 100, 120)
NOW_S = 1_795_007_500.0
RUN = "run 20261130-1104-hier-2x2-200mbit (process 4194303)"
LONG_NAME = "a-name-of-thirty-one-letters-xy"


@pytest.fixture
def labs(make_lab: Any) -> tuple[Sighting, ...]:
    lab: Lab = replace(make_lab(), name="a", created_at=NOW_S - 7500)
    faster = replace(lab, name=LONG_NAME, spec=cluster_spec(2, 2, "1gbit"), probe=None)
    changed = replace(lab, name="ab", probe=None, changed_at=NOW_S - 60, created_at=NOW_S - 59)
    alone = replace(lab, name="alone", spec=cluster_spec(1, 4), probe=None)
    work = Activity("71", NOW_S - 3)
    return (
        Sighting("a", Condition.UP, lab, usage=Activity(RUN, NOW_S - 12.9)),
        Sighting(LONG_NAME, Condition.UP, faster),
        Sighting("ab", Condition.UP, changed, worker=work),
        Sighting("alone", Condition.UP, alone),
        Sighting("coming", Condition.COMING_UP, worker=work),
        Sighting("dead", Condition.REMOVED, note="the process it lived in has ended"),
        Sighting("spoilt", Condition.UNREADABLE, note="it cannot be read", fix="remove it"),
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_every_lab_has_its_row(labs: tuple[Sighting, ...], width: int) -> None:
    lines = text_of(labs_screen(labs, NOW_S, width), width).splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.startswith("  ")}
    text = "\n".join(lines)
    assert 'Lab "dead" was dead (the process it lived in has ended)' in text
    (first,) = [line for line in lines if line.startswith("  a ") and "Mbit/s" in line]
    assert "2 x 2" in first and "200 Mbit/s" in first and "191.3 Mbit/s" in first
    assert "2 h 5 min" in first and first.endswith("runs a job")
    (second,) = [line for line in lines if " 1 Gbit/s" in line]
    assert second.split()[0].removesuffix("...") in LONG_NAME
    (third,) = [line for line in lines if line.startswith("  ab ") and "Mbit/s" in line]
    assert " changed " in third and " 59 s " in third and third.endswith("changing")
    assert "no link" in " ".join(rows["alone"])
    assert "coming up" in text and "unreadable" in text
    assert RUN in " ".join(text.split()) and "for 12 s" in text
    assert "process 71, for 3 s" in text
    assert "fix: remove it" in text
    assert "make cluster-status LAB=a" in text


@pytest.mark.parametrize(
    ("what", "now"),
    [
        (RUN, "runs a job"),
        ("run of hier (process 5)", "runs a job"),
        ("compare of ring, hier (process 5)", "runs a job"),
        ("scale of hier (process 5)", "runs a job"),
        ("its links are being measured (process 5)", "in use"),
    ],
)
def test_whatever_trains_runs_a_job(make_lab: Any, what: str, now: str) -> None:
    used = Sighting("a", Condition.UP, make_lab(), usage=Activity(what, NOW_S - 3))
    lines = text_of(labs_screen((used,), NOW_S, 120), 120).splitlines()
    assert [line for line in lines if line.endswith(f" {now}") and "200 Mbit/s" in line]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_lab_and_one_lab(labs: tuple[Sighting, ...], make_lab: Any, width: int) -> None:
    none = text_of(labs_screen((), NOW_S, width), width)
    assert none == "No lab is up.    next    make cluster-up"
    only = text_of(
        labs_screen((Sighting("default", Condition.UP, make_lab()),), NOW_S, width), width
    )
    assert "make run JOB=hier  " in only
    assert only.endswith("make cluster-down")
    assert "make cluster-down LAB=a" in text_of(labs_screen(labs[:1], NOW_S, width), width)


def test_nodes_that_differ_show_the_slowest_and_the_fastest(make_lab: Any) -> None:
    lab: Lab = make_lab()
    spec = lab.spec.model_validate(
        {
            **lab.spec.to_dict(),
            "overrides": {"node1": {"inter_node": {"rate": "50mbit"}}},
        }
    )
    slower = replace(lab, spec=spec)
    screen = text_of(labs_screen((Sighting("a", Condition.UP, slower),), NOW_S, 80), 80)
    assert "50 to 200 Mbit/s" in screen


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h 0 min"),
        (35999, "9 h 59 min"),
        (36000, "10 h"),
        (86399, "23 h"),
        (86400, "1 day"),
        (9e5, "10 days"),
    ],
)
def test_ages_are_rounded_down(seconds: float, words: str) -> None:
    assert age(seconds) == words


def test_processes_are_found_in_what_was_said() -> None:
    said = (RUN, "71", "its links are being measured (process 9)", "unknown")
    assert [process_of(Activity(each, 0.0)) for each in said] == [4194303, 71, 9, None]
    sighting = Sighting("a", Condition.UP, usage=Activity("run r (process 5)", 10.0))
    assert doing(sighting, 70.0) == ["run r (process 5), for 1 min"]


@pytest.mark.usefixtures("own_folder")
def test_the_json_satisfies_the_contract(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    labs: Sequence[Sighting],
) -> None:
    by_name = {each.name: each for each in labs}
    monkeypatch.setattr(cluster.survey, "survey", lambda: tuple(labs))
    monkeypatch.setattr(cluster.survey, "sight", by_name.get)
    code, out, _ = call(capsys, "status", "--json")
    found = valid(out, "status")["labs"]
    assert code == 0
    assert [each["lab"] for each in found] == [each.name for each in labs]
    assert found[0]["use"]["process"] == 4194303
    assert found[0]["use"]["age_s"] == pytest.approx(time.time() - NOW_S + 12.9, abs=60)
    assert [node["rate_bits_per_second"] for node in found[0]["nodes"]] == [200_000_000] * 2
    assert [each.get("proof") for each in found[:4]] == ["probed", "none", "stale", "none"]
    code, out, _ = call(capsys, "status", "--lab=ab", "--json")
    (one,) = valid(out, "status")["labs"]
    assert one["lab"] == "ab" and code == 0
    code, out, _ = call(capsys, "status", "--lab=a")
    assert "runs     run 20261130-1104-hier-2x2-200mbit (process 4194303), for " in out
    code, out, _ = call(capsys, "status", "--lab=coming")
    assert code == 0 and "coming up" in out
    code, out, _ = call(capsys, "status", "--lab=dead", "--json")
    error = valid(out, "error")["error"]
    assert (code, error["kind"], error["fix"]) == (1, "no_lab", "make cluster-up LAB=dead")
    assert "the process it lived in has ended" in error["message"] + json.dumps(error)
