"""Which steps of a run went over which links, by hand-made records and changes."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.derive import StepFigures
from jobs.figures import run_figures
from jobs.parts import changed, split
from jobs.records import RankRecords, StepRecord
from jobs.summary import summarize
from jobs.verdict import checks
from tests.jobs.command import valid
from tests.jobs.samples import MS, NODES, ranks_of, record, run_json

STEP_MS = 100


def entry(t_ms: float, settled_ms: float | None, node: str, rate: int | None) -> dict[str, Any]:
    """One direction of one change, as run.json has it."""
    return {
        "t_ns": round(t_ms * MS),
        "settled_ns": None if settled_ms is None else round(settled_ms * MS),
        "wall_ns": 1,
        "node": node,
        "direction": "out",
        "configured_bits_per_second": rate,
    }


def steps_at(num: int, late_ms: float = 0, step_ms: float = STEP_MS) -> list[StepRecord]:
    """Steps of 100 ms each, one after the other from 0."""
    return [
        replace(record(k, step_ms=step_ms), t_ns=round((k * STEP_MS + late_ms) * MS))
        for k in range(num)
    ]


def ranks(num: int = 5, late_ms: float = 0) -> list[RankRecords]:
    """The last rank begins and ends each step `late_ms` after the others."""
    return ranks_of([steps_at(num)] * 3 + [steps_at(num, late_ms)])


def figures(num: int = 5, late_ms: float = 0) -> tuple[StepFigures, ...]:
    return run_figures(ranks(num, late_ms), NODES).steps


def numbers(changes: list[dict[str, Any]], late_ms: float = 0) -> list[list[int]]:
    parts = split(figures(late_ms=late_ms), run_json(link_changes=changes))
    return [[step.step for step in part.steps] for part in parts]


def test_no_change_no_parts() -> None:
    assert split(figures(), run_json()) == ()
    assert split(figures(), run_json(link_changes=[])) == ()
    assert not changed(figures(), run_json(link_changes=[]))


@pytest.mark.parametrize(
    ("t_ms", "settled_ms", "expected"),
    [
        (220, 240, [[0, 1], [3, 4]]),  # during step 2, which is in no part
        (200, 200, [[0, 1], [2, 3, 4]]),  # exactly between two
        (190, 210, [[0], [3, 4]]),  # it took from one step into the next
        (0, 0, [[0, 1, 2, 3, 4]]),  # before the first step
        (50, 60, [[1, 2, 3, 4]]),
        (450, 460, [[0, 1, 2, 3]]),
        (220, None, [[0, 1]]),  # the command died: nobody knows what stood after it
    ],
)
def test_the_step_of_the_change_is_in_no_part(
    t_ms: float, settled_ms: float | None, expected: list[list[int]]
) -> None:
    assert numbers([entry(t_ms, settled_ms, "node1", 50_000_000)]) == expected


@pytest.mark.parametrize("t_ms", [500, 501, 10_000])
def test_a_change_after_the_last_step_splits_nothing(t_ms: float) -> None:
    run = run_json(link_changes=[entry(t_ms, t_ms + 1, "node1", 50_000_000)])
    assert not changed(figures(), run)
    assert split(figures(), run) == ()
    summary = summarize(run, ranks(), {"step_seconds": 0.1, "comm_seconds": 0.0}, None)
    assert summary["link"]["proof"] == "probed"
    assert summary["communication_efficiency_ratio"] == pytest.approx(0.7)
    assert summary["predicted"]["error_ratio"] == pytest.approx(0.0)


def test_a_step_lasts_from_its_first_rank_to_its_last() -> None:
    """Rank 3 begins and ends 30 ms late: step 1 is over at 230 ms, step 2 begins at 200."""
    changes = [entry(210, 215, "node1", 50_000_000)]
    assert numbers(changes) == [[0, 1], [3, 4]]
    assert numbers(changes, late_ms=30) == [[0], [3, 4]]


def test_limits_hold_until_they_are_changed_again() -> None:
    changes = [
        entry(110, 120, "node1", 50_000_000),
        {**entry(110, 120, "node1", 50_000_000), "direction": "in"},
        entry(310, 320, "node0", None),
    ]
    parts = split(figures(), run_json(link_changes=changes))
    assert [[step.step for step in part.steps] for part in parts] == [[0], [2], [4]]
    assert [part.as_predicted for part in parts] == [True, False, False]
    outs = [(part.limits["node0", "out"], part.limits["node1", "out"]) for part in parts]
    assert outs == [(200_000_000, 200_000_000), (200_000_000, 50_000_000), (None, 50_000_000)]
    assert [part.limits["node1", "in"] for part in parts] == [200_000_000, 50_000_000, 50_000_000]


def test_a_failed_run_without_steps_was_changed_too() -> None:
    run = run_json(link_changes=[entry(10, 20, "node1", 50_000_000)])
    assert changed((), run)
    summary = valid(summarize(run, [RankRecords() for _ in range(4)], None, None), "run")
    assert (summary["parts"], summary["link"]["proof"]) == ([], "stale")


def slower_after(num_fast: int) -> list[RankRecords]:
    """Steps of 100 ms, then of 150: they wait 15 and 65 ms for the network."""
    fast = steps_at(num_fast)
    slow = [
        replace(record(k, step_ms=150, exposed=((80, 145),)), t_ns=(num_fast * 100 + j * 150) * MS)
        for j, k in enumerate(range(num_fast, num_fast + 3))
    ]
    return ranks_of([[*fast, *slow]] * 4)


def test_the_summary_of_a_split_run() -> None:
    run = run_json(
        link_changes=[
            {**entry(210, 220, node, 100_000_000), "direction": direction}
            for node in ("node0", "node1")
            for direction in ("out", "in")
        ]
    )
    prediction = {"step_seconds": 0.09, "comm_seconds": 0.03}
    summary = valid(summarize(run, slower_after(3), prediction, None), "run")
    first, second = summary["parts"]
    assert (first["first_step"], first["last_step"], first["proof"]) == (0, 1, "probed")
    assert (second["first_step"], second["last_step"], second["proof"]) == (3, 5, "stale")
    assert first["step_seconds"] == {
        "mean": pytest.approx(0.1),
        "median": pytest.approx(0.1),
        "p10": pytest.approx(0.1),
        "p90": pytest.approx(0.1),
        "n": 2,
    }
    assert second["step_seconds"]["median"] == pytest.approx(0.15)
    assert first["comm_seconds"]["exposed"] == pytest.approx(0.015)
    assert second["comm_seconds"]["exposed"] == pytest.approx(0.065)
    assert first["communication_efficiency_ratio"] == pytest.approx(0.7)
    assert second["communication_efficiency_ratio"] == pytest.approx(0.07 / 0.15)
    assert first["samples_per_second"] == pytest.approx(320)
    assert [link["configured_bits_per_second"] for link in second["links"]] == [
        *(100_000_000, 100_000_000, None),
        *(100_000_000, 100_000_000, None),
    ]
    # all steps together, of which nothing is compared with a prediction or without network
    assert summary["step_seconds"]["n"] == 6
    assert summary["communication_efficiency_ratio"] is None
    assert summary["link"]["proof"] == "stale"
    assert summary["link"]["configured_bits_per_second"] == 200_000_000
    assert summary["predicted"] == {
        "step_seconds": 0.09,
        "comm_seconds": 0.03,
        "error_ratio": pytest.approx(-0.1),  # the first part was predicted, 100 ms
    }
    assert summary["bottleneck"] == (
        "the link between nodes. It adds 65 ms to every step. "
        "(Steps 4 to 6: links were changed in this run.)"
    )
    found = checks(run_figures(slower_after(3), NODES), run, summary)
    assert (found[2].good, found[2].text) == (
        False,
        "link proven up to step 2; then it was changed, and not measured since",
    )


def test_a_prediction_for_links_that_no_step_used_is_compared_with_nothing() -> None:
    run = run_json(link_changes=[entry(0, 0, "node1", 50_000_000)])
    prediction = {"step_seconds": 0.09, "comm_seconds": 0.03}
    summary = valid(summarize(run, ranks(), prediction, None), "run")
    assert summary["predicted"]["error_ratio"] is None
    assert [part["proof"] for part in summary["parts"]] == ["stale"]
    words = checks(run_figures(ranks(), NODES), run, summary)[2].text
    assert words.startswith("link NOT proven: it was changed before the first step")


def test_a_slow_inside_is_the_bottleneck_and_not_the_link() -> None:
    """In a step a node sends 1 MB to others and 2 MB inside: at 50 mbit the inside is slower."""
    run = run_json()
    for rate, words in ((400_000_000, "the link between nodes"), (50_000_000, "inside node1")):
        run["lab"]["nodes"][1]["intra_rate_bits_per_s"] = rate
        assert words in summarize(run, ranks(), None, None)["bottleneck"]
    inside = {**entry(0, 0, "node0", 10_000_000), "direction": "inside"}
    later = summarize({**run, "link_changes": [inside]}, ranks(), None, None)
    assert later["bottleneck"].startswith("communication inside node0. It adds 15 ms")
