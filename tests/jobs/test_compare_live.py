"""Jobs that take turns while they go: what is written, and what a terminal shows meanwhile."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jobs.progress import PhaseProgress
from jobs.records import RankRecords
from jobs.report.compare_live import LiveTurns
from jobs.runfolder import RunFolder
from jobs.spec import load_job
from tests.jobs.samples import flat, run_json

RANKS = [
    RankRecords(
        header={
            "initial_params_sha256": "aa",
            "model_parameters": 868_000,
            "gradient_bytes": 3_470_000,
        }
    )
] * 4


def live_of(*jobs: str, terminal: bool = False, width: int = 100, sets: Any = ()) -> Any:
    """(what it has written so far, the observer), begun with two rounds of two steps."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal)
    live = LiveTurns(console, jobs, 'Lab "default": 2 nodes x 2 ranks, 200 Mbit/s', alike=True)
    for job in jobs:
        spec = load_job(job, ("train.steps=4", *sets)).model_dump(mode="json")
        turns = {"group": "g", "rounds": 2, "steps_per_turn": 2}
        live.begin(RunFolder(Path(job)), run_json(job=spec, turns=turns))
    return out, live


def tell(live: LiveTurns, job: int, phase: str, done: int, total: int, step_s: float) -> None:
    live.progress(PhaseProgress(phase, done, total, 1.0, 4.0, 3.0, step_s, job), [])


def start(live: LiveTurns, num_jobs: int) -> None:
    for job in range(num_jobs):
        live.progress(PhaseProgress("start", 1, 1, 1.0, None, None, None, job), RANKS)
    for job in range(num_jobs):
        tell(live, job, "warm_up", 3, 3, 0.3)
        for done in range(1, 11):
            tell(live, job, "no_network", done, 20, 0.198)


def turn(live: LiveTurns, job: int, number: int, step_s: float) -> None:
    tell(live, job, "warm_up", 4 + number, 5, 0.3)
    for done in (1, 2):
        tell(live, job, "train", 2 * number + done, 4, step_s)
    for done in range(5):
        tell(live, job, "no_network", 11 + 5 * number + done, 20, 0.2)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_what_is_compared_is_said_first(width: int) -> None:
    out, live = live_of("ring", "hier", width=width)
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    assert flat(text) == flat(
        "Same model, data, seed and batch: byte-GPT, 4 layers of width 128; batch 8 per rank, 32 "
        "in all Computing is paced: a step computes for at least 180 ms. "
        'Lab "default": 2 nodes x 2 ranks, 200 Mbit/s. 2 rounds; in each the jobs take turns, '
        "2 counted steps a turn. About 20 s, and what the network adds. "
    )
    live.end()


def test_free_running_jobs_promise_no_time() -> None:
    out, live = live_of("ring", "hier", sets=("pace=null",))
    assert "About" not in out.getvalue()
    live.end()


def test_a_line_for_the_start_one_before_the_rounds_and_one_a_round() -> None:
    out, live = live_of("ring", "hier")
    start(live, 2)
    for number, order in enumerate([(0, 1), (1, 0)]):
        for job in order:
            turn(live, job, number, 0.35 if job == 0 else 0.285)
    live.end()
    *_, first, rest, before, one, two = [line for line in out.getvalue().splitlines() if line]
    assert first.startswith("  start          4 ranks")
    assert flat(first + rest).endswith(
        "0.87 M parameters = 3.47 MB of gradients a step; the same start on 4 of 4 ranks"
    )
    assert before.startswith("  no network    20 steps")
    assert before.endswith("198 ms a step: the same computing, nothing sent")
    assert one.startswith("  round 1/2      4 steps")
    assert two.startswith("  round 2/2      4 steps")
    assert one.endswith("ring 350 ms, hier 285 ms")


def test_a_terminal_shows_what_is_going_on_and_what_is_left() -> None:
    out, live = live_of("ring", "hier", terminal=True)
    assert "importing torch, meeting: 0.0 s" in out.getvalue()
    start(live, 2)
    turn(live, 0, 0, 0.35)
    text = out.getvalue()
    assert "ring: train 2/4" in text
    assert "s left" in text
    assert "[########" in text
    live.end()
    live.end()
