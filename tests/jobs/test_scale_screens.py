"""The screens of scale on all three widths: figures are whole, parts add up as they stand."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.backends import Chosen
from cluster.netns import NETNS
from cluster.spec import load_cluster
from jobs.report.scale_live import size_line
from jobs.report.scale_screen import (
    closing_screen,
    conclusion,
    estimate_s,
    files_lines,
    next_lines,
    scale_header,
)
from jobs.report.scale_table import whole_ms
from jobs.scale.arithmetic import SizeFigures
from jobs.scale.plan import ONE_RANK, ScalePlan, Size, plan_scale
from jobs.scale.rows import ScaleRow, row_json, rows_csv
from jobs.scale.sizes import Turns
from jobs.spec import JobSpec, load_job
from tests.jobs.conftest import cluster_spec
from tests.jobs.samples import flat, text_of

WIDTHS = (80, 100, 120)
NODE, TWO, FOUR = Size(1, 2), Size(2, 2), Size(4, 2)
# measured step, predicted step, no network, network, slower rank: milliseconds
STEPS = {
    "ring": {
        ONE_RANK: (181, 180, 180, 0, 0),
        NODE: (184, 184, 182, 1.5, 0.4),
        TWO: (312.4, 318, 186, 121, 2.3),
        FOUR: (428.8, 431, 204, 214, 9.6),
    },
    "hier": {
        ONE_RANK: (180, 180, 180, 0, 0),
        NODE: (185, 183, 182, 2, 0.3),
        TWO: (231, 228, 185, 43, 1.1),
        FOUR: (331, 329, 203, 118, 12),
    },
}


def figures(size: Size, strong: bool, times: Sequence[float]) -> SizeFigures:
    share = size.num_ranks if strong else 1
    step, predicted, no_network, network, slower = (ms / 1e3 for ms in times)
    return SizeFigures(
        num_nodes=size.nodes,
        num_ranks=size.num_ranks,
        samples=8 * size.num_ranks / share,
        step_s=step,
        spread=1.05,
        no_network_s=no_network,
        no_network_spread=1.05,
        network_s=network,
        slower_rank_s=slower,
        predicted_step_s=predicted,
    )


def rows(strong: bool = False, crowded: bool = False) -> list[ScaleRow]:
    made = []
    for job, steps in STEPS.items():
        each = {size: figures(size, strong, times) for size, times in steps.items()}
        made += [
            ScaleRow(
                job=job,
                size=size,
                run_id=f"20261130-1104-scale-{job}-{size}-200mbit",
                strong=strong,
                crowded=crowded and size.num_ranks > 2,
                figures=mine,
                one_rank=each[ONE_RANK],
                one_rank_run=f"20261130-1104-scale-{job}-1x1-200mbit",
                one_node=each[NODE],
            )
            for size, mine in each.items()
        ]
    return made


def plan(scaling: str = "weak", *jobs: JobSpec) -> ScalePlan:
    chosen = jobs or (load_job("ring"), load_job("hier"))
    return plan_scale(chosen, cluster_spec(2, 2), "1 2 4", scaling)


def cells(text: str, job: str, lab: str) -> list[str]:
    (found,) = re.findall(rf"^  {job} +{lab} .*$", text, re.MULTILINE)
    return found.replace(" %", "%").split()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_says_what_was_measured(width: int) -> None:
    text = text_of(closing_screen(plan(), rows(), width), width)
    assert cells(text, "ring", "1x1")[2] == "181"
    ring = cells(text, "ring", "4x2")
    assert ring[-4:] == ["214", "10", "24", "0"]  # network, slower rank, contention, other
    assert "429" in ring and "42%" in ring
    if width >= 100:
        assert ring[3] == "149"  # samples a second
        assert ring[-6:-4] == ["43%", "248"]  # against a node, lost
    if width == 120:
        assert ring[-7] == "-0.2"  # off by
    assert cells(text, "ring", "1x1")[-4:] == ["-"] * 4
    assert "differ by at most" in flat(text)


def test_the_parts_of_the_lost_time_add_up_as_they_stand() -> None:
    text = text_of(closing_screen(plan(), rows(), 100), 100)
    for job in STEPS:
        for lab in ("1x2", "2x2", "4x2"):
            total, *parts = (int(cell) for cell in cells(text, job, lab)[-5:])
            assert sum(parts) == total


@pytest.mark.parametrize(
    ("parts_s", "decimals", "texts", "total"),
    [
        ([0.0112, -0.0042, 0.0004, 0.0006], 0, ["11", "-4", "0", "1"], "8"),
        ([0.0004, 0.0004, 0.0004, 0.0004], 0, ["1", "1", "0", "0"], "2"),
        ([-0.001, 0.0, 0.0, -0.0005], 1, ["-1.0", "0.0", "0.0", "-0.5"], "-1.5"),
        ([1.5, 0.25, 0.0, 0.0], 0, ["1,500", "250", "0", "0"], "1,750"),
    ],
)
def test_whole_milliseconds_add_up_also_below_zero(
    parts_s: Sequence[float], decimals: int, texts: list[str], total: str
) -> None:
    assert whole_ms(parts_s, decimals) == (texts, total)


def longer(size: SizeFigures, factor: float) -> SizeFigures:
    times = ("step_s", "no_network_s", "network_s", "slower_rank_s", "predicted_step_s")
    return replace(size, **{name: getattr(size, name) * factor for name in times})


@pytest.mark.parametrize("width", WIDTHS)
def test_steps_of_a_minute_fit(width: int) -> None:
    slow = [
        replace(
            row,
            job="ring-interleaved-long-name",
            figures=longer(row.figures, 150),
            one_rank=longer(row.one_rank, 150),
        )
        for row in rows(crowded=True)
    ]
    text = text_of(closing_screen(plan(), slow, width), width)
    assert "64,320" in text and "32,100" in text
    assert "  4x2 !  " in text
    assert "ranks share cores, and computing is real" in flat(text)


def test_what_lost_most_is_said_in_words() -> None:
    words = conclusion(rows())
    assert words == (
        "Efficiency at 4x2: hier 54 %, ring 42 %. ring loses 248 ms a step there, 214 ms of them "
        "to waiting for the network."
    )
    assert conclusion([row for row in rows() if row.size == ONE_RANK]) is None
    assert conclusion([]) is None


def test_strong_scaling_is_held_against_a_share_of_the_step() -> None:
    strong = [row for row in rows(strong=True) if row.size == TWO and row.job == "ring"]
    (row,) = strong
    assert row.efficiency == pytest.approx(181 / (4 * 312.4))
    text = flat(text_of(closing_screen(plan("strong"), strong, 100), 100))
    assert "above one rank's step / the number of ranks" in text


def test_an_efficiency_that_is_withheld_says_why() -> None:
    noisy = [replace(row, one_rank=replace(row.one_rank, spread=1.42)) for row in rows()]
    text = text_of(closing_screen(plan(), noisy, 100), 100)
    assert "ring: the steps of one rank alone vary too much" in flat(text)
    assert cells(text, "ring", "4x2")[4:] == ["-", "-", "43%"] + ["-"] * 5
    assert "there is no prediction to compare with" in text
    assert noisy[0].baseline is None


@pytest.mark.parametrize("width", WIDTHS)
def test_a_node_that_varies_withholds_what_is_held_against_it_and_nothing_else(width: int) -> None:
    noisy = [replace(row, one_node=replace(row.one_node, no_network_spread=1.42)) for row in rows()]
    assert [row.node_efficiency for row in noisy] == [None] * 8
    assert [row.efficiency for row in noisy] == [row.efficiency for row in rows()]
    reason = "the steps without network of one full node vary too much to compare with"
    for row in noisy:
        told = row_json(row)
        assert (told["node_scaling_efficiency_ratio"], told["withheld"]) == (None, None)
        assert (told["node_withheld"] or "").startswith(reason) == (row.size != ONE_RANK)
    assert "node_withheld" in rows_csv(noisy).splitlines()[0]
    text = text_of(closing_screen(plan(), noisy, width), width)
    assert (f"withheld ring: {reason}" in flat(text)) == (width >= 100)
    if width >= 100:
        assert cells(text, "ring", "4x2")[-6] == "-"
        assert "against a node samples" not in flat(text)
    assert "withheld" not in flat(text_of(closing_screen(plan(), rows(), width), width))


def test_the_header_says_what_will_be_run() -> None:
    for width in WIDTHS:
        text = flat(text_of(scale_header(plan(), Chosen(NETNS), Turns(3, 10), 2, width), width))
        assert "Weak scaling of ring, hier: 1x2, 2x2, 4x2 (nodes x ranks)" in text
        assert "byte-GPT, 4 layers of width 128; every rank trains 8 samples a step" in text
        assert "Computing is paced: a step computes for at least 180 ms." in text
        assert "200 Mbit/s between its nodes" in text
        assert "3 rounds there" in text and "10 counted steps a turn" in text
        assert "outnumber" not in text  # it is paced by sleeping
    strong = flat(text_of(scale_header(plan("strong"), Chosen(NETNS), Turns(1, 10), 2, 80), 80))
    assert "a step trains 8 samples at every size" in strong
    assert "at least 180 ms. That is of one rank alone: each of N ranks computes 1/N" in strong


def test_ranks_that_outnumber_cores_are_told_where_computing_is_real() -> None:
    free = load_job("hier", ["pace=null"])
    text = flat(text_of(scale_header(plan("weak", free), Chosen(NETNS), Turns(3, 10), 2, 100), 100))
    assert "Ranks outnumber cores at 2x2 (4), 4x2 (8), and there are 2 cores" in text
    assert " About " not in text
    mixed = plan("weak", free, load_job("ring"))
    text = flat(text_of(scale_header(mixed, Chosen(NETNS), Turns(3, 10), 8, 100), 100))
    assert "outnumber" not in text
    assert "Computing is paced" in text


def test_the_estimate_counts_every_step_of_every_size() -> None:
    one, three = estimate_s(plan(), 1, 10), estimate_s(plan(), 3, 10)
    assert one is not None and three is not None
    assert three - one == pytest.approx(4 * 2 * 22 * 0.18)


def test_a_size_that_is_done_has_a_line() -> None:
    at_four = [row for row in rows(crowded=True) if row.size == FOUR]
    text = text_of(size_line(FOUR, 7.31, 44.02, at_four, 100), 100)
    assert text == (
        "  4x2 !     8 ranks   lab  7.3 s   all  44.0 s   ring 429 ms 42 %, hier 331 ms 54 %"
    )


def test_a_size_for_which_no_lab_was_made_tells_no_time_of_one() -> None:
    at_four = [row for row in rows() if row.size == FOUR]
    text = text_of(size_line(FOUR, None, 44.02, at_four, 100), 100)
    assert text.startswith("  4x2       8 ranks   all  44.0 s   ring 429 ms")


def test_what_to_type_next_is_the_same_with_one_change() -> None:
    typed = {"JOBS": "ring", "NODES": "1 2", "CLUSTER": "4x1", "SCALING": "strong", "ROUNDS": "2"}
    assert text_of(next_lines(plan("strong"), typed, 100), 100).splitlines() == [
        '  next    make scale JOBS=ring NODES="1 2" CLUSTER=4x1 SCALING=strong ROUNDS=2 RATE=1gbit',
        '          make scale JOBS=ring NODES="1 2" CLUSTER=4x1 SCALING=weak ROUNDS=2',
    ]
    assert "runs/x: scale.csv" in text_of(files_lines("x", 80), 80)


def test_a_rate_that_was_typed_is_replaced_and_not_repeated() -> None:
    typed = {"JOBS": "ring hier", "RATE": "1gbit"}
    fast = replace(plan(), cluster=load_cluster("2x2", "1gbit"))
    assert text_of(next_lines(fast, typed, 100), 100).splitlines() == [
        '  next    make scale JOBS="ring hier" RATE=200mbit',
        '          make scale JOBS="ring hier" RATE=1gbit SCALING=strong',
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_command_is_one_for_the_shell_too(width: int) -> None:
    typed = {
        "JOBS": "ring hier",
        "NODES": "1 2 4",
        "SET": 'pace={forward_ms: 60, backward_ms: 120} data.path="it\'s"',
        "DATA": "a folder/x.txt",
        "STEPS": "10",
        "BACKEND": "netns",
        "PRIVILEGE": "sudo",
    }
    text = text_of(next_lines(plan(), typed, width), width)
    assert max(map(len, text.splitlines())) <= max(width, 80)
    joined = text.replace("\\\n", "")  # as a shell reads it
    commands = [shlex.split(line.removeprefix("  next")) for line in joined.splitlines()]
    expected = [f"{name}={value}" for name, value in typed.items()]
    assert commands == [
        ["make", "scale", *expected, "RATE=1gbit"],
        ["make", "scale", *expected, "SCALING=strong"],
    ]
