"""The screens of a run, at every layout: they fit, they add up, and no number is cut."""

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from jobs.figures import RunFigures, run_figures
from jobs.progress import PhaseProgress
from jobs.records import RankRecords
from jobs.report.live import LiveRun, phase_line, train_words
from jobs.report.run_header import run_header
from jobs.report.run_screen import closing_screen
from jobs.report.text import plain
from jobs.runfolder import RunFolder
from jobs.summary import summarize
from tests.jobs.compare_samples import compared, prediction_of
from tests.jobs.samples import NODES, flat, run_json, stock_run, text_of, typical_ranks

WIDTHS = (80, 100, 120)


def closing(width: int, records: list[RankRecords] | None = None) -> str:
    run, made = run_json(), records if records is not None else typical_ranks()
    prediction = {"step_seconds": 0.279, "comm_seconds": 0.17}
    figures: RunFigures = run_figures(made, NODES)
    summary = summarize(run, made, prediction, None)
    return text_of(closing_screen(run, figures, summary, prediction, 900_000, width), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_closing_screen_says_everything(width: int) -> None:
    text = closing(width)
    words = flat(text)
    assert "STEP 286 ms 8 of 10 steps between 286 and 286" in words
    assert "112 samples/s, 7,161 tokens/s over all ranks" in words
    assert "where the mean step goes, over 4 ranks" in words
    # exposed: (3 x 88.6 + 83.6) / 4 = 87.35, of which (3 x 5) / 4 = 3.75 wait for rank 3
    assert re.search(r"WAITING +for the network +\(exposed communication\) +84 +29 %  @+", text)
    assert re.search(r"for a slower rank \(straggler wait\) +4 +1 %", text)
    # bucket 0 takes 83 ms, all hidden; bucket 1 189 .. 272.6 = 83.6, none of it hidden
    assert "communication lasted 167 ms a step: 83 ms hid behind computing, 84 ms did not" in words
    assert "each node sent 3.47 MB a step; 3.47 MB is the least any algorithm can send" in words
    assert "efficiency 69 % = median step without network 198 ms (n = 20)" in words
    assert "predicted 279 ms from the measured link, 2 % under the median step" in words
    assert "parameters equal on 4 of 4 ranks (9f3a21c7); time adds up (rest 1.7 %)" in words
    assert "link proven" in words
    # 3.47 MB / (20 MB/s) / 286 ms = 61 %
    assert (
        "Bottleneck: the link between nodes. It adds 84 ms to every step and carries data 61 % of "
        "the time." in words
    )
    assert "runs/latest = runs/20261130-1104-hier-2x2-200mbit (0.9 MB)" in words
    assert set(re.findall(r"make ([a-z-]+)", text)) == {"run", "runs"}


@pytest.mark.parametrize("width", WIDTHS)
def test_what_torchs_own_class_does_not_tell_is_said_and_not_zero(width: int) -> None:
    run, made = stock_run(), typical_ranks()
    for rank in made:
        untold = {"buckets": None, "intra_node_bytes": None, "inter_node_bytes": None}
        rank.steps = [replace(each, **untold) for each in rank.steps]
        rank.end = {**(rank.end or {}), "inter_node_bytes": None}
    prediction = {"step_seconds": None, "comm_seconds": None, "reason": "torch does not tell"}
    figures, summary = run_figures(made, NODES), summarize(run, made, prediction, None)
    text = text_of(closing_screen(run, figures, summary, prediction, 900_000, width), width)
    words = flat(text)
    # exposed: (3 x 88.6 + 83.6) / 4 = 87.35, whoever was waited for
    assert re.search(r"WAITING +for other ranks +\(exposed communication\) +87 +31 %  @+", text)
    assert "for a slower rank" not in text and "for the network" not in text
    assert "how long communication lasted is not known: torch's own class does not tell" in words
    assert "the busiest node's NIC sent 3.63 MB a step, headers included; 3.47 MB is" in words
    assert "efficiency 69 %" in words
    assert "predicted nothing: torch does not tell" in words
    assert "Bottleneck: communication, or a slower rank. It adds 87 ms to every step; the" in words
    assert not re.search(r"(?<![\d,.])0 (ms|B|MB)\b|overlap", words)
    header = flat(
        text_of(run_header(run, 'Lab "default": 2 nodes', "The library's own.", width), width)
    )
    assert "torch's DistributedDataParallel as it is, with its own all-reduce." in header
    hooked = {**run["job"], "ddp": {**run["job"]["ddp"], "algorithm": "ring"}}
    header = flat(text_of(run_header({**run, "job": hooked}, "2 nodes", "A ring.", width), width))
    assert "torch's DistributedDataParallel, with our hook. ring: A ring." in header


@pytest.mark.parametrize("width", WIDTHS)
def test_the_parts_of_the_step_add_up_on_the_screen(width: int) -> None:
    text = closing(width)
    section = text.partition("where the mean step goes")[2].partition("\n  network")[0]
    rows = [
        (int(ms), int(share)) for ms, share in re.findall(r" (\d+) +(\d+) %(?:  |$)", section, re.M)
    ]
    *parts, total = rows
    assert total == (286, 100)
    assert len(parts) == 7
    assert (sum(ms for ms, _ in parts), sum(share for _, share in parts)) == total


def test_the_total_is_explained_where_it_is_not_the_step() -> None:
    records = typical_ranks()
    records[0].steps = [replace(each, step_s=0.3, other_s=0.019) for each in records[0].steps]
    words = flat(closing(100, records))
    assert "STEP 300 ms" in words
    assert "(mean over ranks; STEP takes the slowest rank of each step: 300 ms)" in words


def test_a_noisy_baseline_gives_the_reason_instead_of_a_ratio() -> None:
    records = typical_ranks()
    for rank in records:
        rank.baseline = [
            replace(each, record=replace(each.record, step_s=0.1 + 0.02 * k))
            for k, each in enumerate(rank.baseline)
        ]
    words = flat(closing(80, records))
    assert "efficiency not given: the steps without network vary too much" in words


def test_a_native_run_tells_what_the_nic_counted() -> None:
    records = typical_ranks()
    for rank in records:
        rank.steps = [
            replace(each, inter_node_bytes=None, intra_node_bytes=None) for each in rank.steps
        ]
    words = flat(closing(100, records))
    assert "the busiest node's NIC sent 3.63 MB a step, headers included" in words


def test_a_silent_run_says_that_nothing_was_sent() -> None:
    records = typical_ranks()
    for rank in records:
        rank.steps = [replace(each, inter_node_bytes=0, intra_node_bytes=0) for each in rank.steps]
    assert "network nothing was sent" in flat(closing(100, records))


@pytest.mark.parametrize(
    ("orders", "set_epoch", "words"),
    [
        (["a"], True, None),
        (["a", "b"], True, "data 2 passes over the text, each in an order of its own"),
        (["a"] * 5, False, "data 5 passes over the text, each in the same order: set_epoch was"),
        (["a"] * 5, True, "data 5 passes over the text, each in the same order"),
    ],
)
@pytest.mark.parametrize("width", WIDTHS)
def test_passes_over_the_text_are_told_where_there_are_several(
    width: int, orders: list[str], set_epoch: bool, words: str | None
) -> None:
    records = typical_ranks()
    for rank in records:
        assert rank.end is not None
        rank.end["data_orders"] = orders
    run = run_json()
    run["job"]["data"]["set_epoch"] = set_epoch
    figures = run_figures(records, NODES)
    summary = summarize(run, records, None, None)
    text = flat(text_of(closing_screen(run, figures, summary, None, 900_000, width), width))
    assert ("passes" in text) == (words is not None)
    if words:
        assert words in text
        assert ("was not called" in text) == (not set_epoch)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_header_says_what_times_mean(width: int) -> None:
    run = run_json()
    run["host"]["cores"] = 2
    text = flat(
        text_of(
            run_header(run, 'Lab "default": 2 nodes x 2 ranks, 200 Mbit/s', "Add up.", width), width
        )
    )
    assert 'Job "hier": byte-GPT, 4 layers of width 128; batch 8 per rank, 32 in all' in text
    assert "hierarchical: Add up." in text
    assert "Computing is paced: a step computes for at least 180 ms." in text
    assert "Ranks outnumber cores: 4 ranks on 2 cores." in text
    # 5 s to start, and 53 steps of 180 ms
    assert 'Lab "default": 2 nodes x 2 ranks, 200 Mbit/s. About 15 s.' in text


def test_the_header_of_real_computing_promises_no_time() -> None:
    inject = {"phase": "bucket", "ms": 200, "rank": 1, "bucket": 0}
    changes = {"pace": None, "inject": inject, "placement": "interleaved"}
    run = run_json(job={**run_json()["job"], **changes})
    run["host"]["cores"] = 2
    text = flat(plain(run_header(run, 'Lab "default": 2 nodes x 2 ranks', "Add up.", 100)))
    assert "paced" not in text
    assert "About" not in text
    assert "Its times vary" in text
    assert "Placement of ranks on nodes: interleaved." in text
    assert "A delay is put in on purpose: 200 ms, bucket, rank 1." in text


@pytest.mark.parametrize(
    ("ddp", "accumulate", "words"),
    [
        ({}, 4, None),
        ({"no_sync": True, "sync": "allreduce", "lesson_deadlock": False}, 4, None),
        ({"no_sync": False}, 4, "Each of the 4 micro-steps of a step is reduced by itself."),
        ({"sync": "barrier"}, 1, "No gradient is reduced: ranks only meet at a barrier after"),
        ({"lesson_deadlock": True}, 1, "A gradient that never comes is waited for, on purpose."),
    ],
)
def test_the_header_says_how_its_steps_are_unusual(
    ddp: dict[str, Any], accumulate: int, words: str | None
) -> None:
    job = run_json()["job"]
    changes = {"ddp": {**job["ddp"], **ddp}, "train": {**job["train"], "accumulate": accumulate}}
    text = flat(
        plain(
            run_header(run_json(job={**job, **changes}), 'Lab "default": 2 nodes', "Add up.", 100)
        )
    )
    assert (words is None) == ("reduced" not in text and "on purpose" not in text)
    assert words is None or words in text


def live_run(console: Console) -> None:
    live = LiveRun(console, 'Lab "default": 2 nodes x 2 ranks', "Add up.")
    run = run_json()
    live.begin(RunFolder(None), run)  # type: ignore[arg-type]  # a live run needs no folder
    live.progress(PhaseProgress("start", 1, 1, 3.1, None, None, None), typical_ranks())
    live.progress(PhaseProgress("warm_up", 3, 3, 0.9, None, 3.9, 0.3), [])
    for done in range(1, 21):
        live.progress(PhaseProgress("no_network", done, 20, 4.0, None, None, 0.198), [])
        if done == 10:
            live.progress(PhaseProgress("train", 15, 30, 4.3, 3.83, 3.1, 0.286), [])
            live.progress(PhaseProgress("train", 30, 30, 8.6, 3.83, 2.6, 0.286), [])
    live.end()


def test_without_a_terminal_each_phase_is_one_plain_line() -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    live_run(console)
    console.file.close()
    text = console.export_text()
    assert "\x1b" not in text
    phases = [line for line in text.splitlines() if re.match(r"  (start|warm|no net|train)", line)]
    assert phases == [
        "  start          4 ranks    3.1 s   0.87 M parameters = 3.47 MB of gradients a step; the "
        "same start",
        "  warm-up        3 steps    0.9 s   not counted",
        "  train         30 steps    8.6 s   [" + "#" * 30 + "]   loss 3.83 -> 2.60",
        "  no network    20 steps    4.0 s   198 ms a step: the same computing, nothing sent",
    ]
    assert "on 4 of 4 ranks" in text


def test_on_a_terminal_the_lines_are_redrawn(capsys: Any) -> None:
    live_run(Console(width=100, force_terminal=True, legacy_windows=False))
    text = capsys.readouterr().out
    assert "15/30 steps" in text
    assert "loss 3.10   4 s left" in text
    assert "\x1b[" in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_line_that_is_redrawn_is_one_line(width: int) -> None:
    progress = PhaseProgress("train", 170, 2000, 4.3, 3.83, 3.1, 0.286)
    assert len(phase_line(progress, train_words(progress, width), 4, width)) == 1


def test_the_clock_runs_while_the_ranks_start(capsys: Any) -> None:
    console = Console(width=100, force_terminal=True, legacy_windows=False)
    live = LiveRun(console, 'Lab "default": 2 nodes x 2 ranks', "Add up.")
    live.begin(RunFolder(None), run_json())  # type: ignore[arg-type]
    live.tick(time.monotonic() + 7.0)
    live.end()
    assert "7.0 s   importing torch" in capsys.readouterr().out


def offered(width: int, step_ms: float, prediction: dict[str, Any] | None, **run: Any) -> str:
    """What the closing screen of a ring at 200 Mbit/s offers next; 70 ms are computing."""
    each = compared("ring", (step_ms,) * 3, group=None, prediction=prediction, run=run)
    lines = closing_screen(each.run, each.figures, each.summary, prediction, 900_000, width)
    return text_of(lines, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_faster_link_is_offered_with_what_it_would_bring(width: int) -> None:
    """Two buckets of 1 MB, the second ready 10 ms before the end of backward, at 125 MB/s.

    A ring of 4 sends 1.5 MB over the link for each: 6 stages of 0.25 MB, 2 ms and 0.5 ms more each.
    So each takes 15 ms; the first one is over at 25 ms, the second one from 30 to 45: 5 exposed.
    """
    found = offered(width, 150, prediction_of())
    assert re.search(r"make link NODE=all RATE=1gbit +.*predicted step: 75\.0 ms", found)
    assert ("a faster link" in found) == (width >= 100)


def test_a_faster_link_is_not_offered_where_it_brings_nothing_or_nobody_knows() -> None:
    assert "make link" not in offered(100, 76, prediction_of())
    assert "make link" not in offered(100, 150, None)
    assert "make link" not in offered(100, 150, prediction_of(rate=None))
    change = {"t_ns": 0, "settled_ns": 0, "wall_ns": 1, "node": "node1", "direction": "out"}
    changed = [{**change, "configured_bits_per_second": 50_000_000}]
    assert "make link" not in offered(100, 150, prediction_of(), link_changes=changed)
