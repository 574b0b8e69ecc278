"""Scaling arithmetic: efficiencies to the digit, and lost time that adds up."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.figures import run_figures
from jobs.records import RankRecords
from jobs.scale import arithmetic
from jobs.scale.arithmetic import SizeFigures
from tests.jobs.samples import NODES, bucket, ranks_of, record

ALONE = SizeFigures(
    num_nodes=1,
    num_ranks=1,
    samples=8,
    step_s=0.2,
    spread=1.1,
    no_network_s=0.19,
    no_network_spread=1.1,
    network_s=0.0,
    slower_rank_s=0.0,
    predicted_step_s=0.19,
)
WEAK = SizeFigures(
    num_nodes=2,
    num_ranks=4,
    samples=32,
    step_s=0.32,
    spread=1.1,
    no_network_s=0.21,
    no_network_spread=1.1,
    network_s=0.08,
    slower_rank_s=0.015,
    predicted_step_s=0.3125,
)
STRONG = replace(WEAK, samples=8, step_s=0.125, no_network_s=0.0525, predicted_step_s=0.1)


def test_weak_scaling_is_the_time_of_one_rank_over_the_time_of_many() -> None:
    assert WEAK.samples_per_s == 100.0
    assert arithmetic.efficiency(WEAK, ALONE) == pytest.approx(0.2 / 0.32)
    assert arithmetic.predicted_efficiency(WEAK, ALONE) == pytest.approx(0.2 / 0.3125)
    assert arithmetic.efficiency(ALONE, ALONE) == 1.0
    assert arithmetic.ideal_step_s(WEAK, ALONE) == 0.2


def test_strong_scaling_shares_the_ideal_step_among_the_ranks() -> None:
    assert arithmetic.efficiency(STRONG, ALONE) == pytest.approx(0.2 / (4 * 0.125))
    assert arithmetic.predicted_efficiency(STRONG, ALONE) == pytest.approx(0.2 / (4 * 0.1))
    assert arithmetic.ideal_step_s(STRONG, ALONE) == pytest.approx(0.05)


def test_against_a_full_node_counts_nodes() -> None:
    node = replace(WEAK, num_nodes=1, num_ranks=2, samples=16, step_s=0.25)  # 64 samples a second
    assert arithmetic.node_efficiency(WEAK, node) == pytest.approx(100 / (2 * 64))
    assert arithmetic.node_efficiency(node, node) == 1.0


def test_lost_time_has_its_four_parts() -> None:
    weak = arithmetic.lost(WEAK, ALONE)
    assert weak is not None
    assert (weak.network_s, weak.slower_rank_s) == (0.08, 0.015)
    assert weak.contention_s == pytest.approx(0.02)
    assert weak.other_s == pytest.approx(0.005)
    assert weak.total_s == pytest.approx(0.12)
    strong = arithmetic.lost(STRONG, ALONE)
    assert strong is not None
    assert strong.contention_s == pytest.approx(0.0525 - 0.19 / 4)
    assert strong.total_s == pytest.approx(0.125 - 0.2 / 4)


seconds = st.floats(1e-4, 10)


@given(seconds, seconds, seconds, seconds, seconds, seconds, st.sampled_from([8, 32]))
def test_lost_time_adds_up_whatever_was_measured(
    step_s: float,
    alone_s: float,
    no_network_s: float,
    alone_no_network_s: float,
    network_s: float,
    slower_rank_s: float,
    samples: float,
) -> None:
    alone = replace(ALONE, step_s=alone_s, no_network_s=alone_no_network_s)
    size = replace(
        WEAK,
        samples=samples,
        step_s=step_s,
        no_network_s=no_network_s,
        network_s=network_s,
        slower_rank_s=slower_rank_s,
    )
    lost = arithmetic.lost(size, alone)
    assert lost is not None
    parts = lost.network_s + lost.slower_rank_s + lost.contention_s + lost.other_s
    assert parts == lost.total_s
    ideal_s = alone_s * samples / 32
    assert parts == pytest.approx(step_s - ideal_s, abs=1e-12)


@pytest.mark.parametrize("missing", ["no_network_s", "network_s", "slower_rank_s"])
def test_without_one_of_its_parts_lost_time_is_not_told(missing: str) -> None:
    assert arithmetic.lost(replace(WEAK, **{missing: None}), ALONE) is None


def test_what_was_not_predicted_has_no_predicted_efficiency() -> None:
    assert arithmetic.predicted_efficiency(replace(WEAK, predicted_step_s=None), ALONE) is None


def test_a_reference_that_varies_compares_with_nothing() -> None:
    assert arithmetic.withheld(replace(ALONE, spread=1.3)) is None
    words = arithmetic.withheld(replace(ALONE, spread=1.5))
    assert words == (
        "the steps of one rank alone vary too much to compare with: p90 / median is 1.500, at "
        "most 1.3 is used"
    )


def test_a_full_node_is_judged_by_its_steps_without_network() -> None:
    node = replace(WEAK, num_nodes=1, num_ranks=2, spread=9.0, no_network_spread=1.3)
    assert arithmetic.node_withheld(node) is None
    assert arithmetic.node_withheld(replace(node, no_network_spread=1.5)) == (
        "the steps without network of one full node vary too much to compare with: p90 / median "
        "is 1.500, at most 1.3 is used"
    )
    words = arithmetic.node_withheld(replace(node, no_network_spread=None))
    assert words is not None
    assert "of one full node were not measured" in words


def two_ranks(baseline_ms: Sequence[float] = (70,) * 20) -> list[RankRecords]:
    """Rank 1 is ready 5 ms late; rank 0 waits for it, and then both 10 ms for the network."""
    early = record(backward=45, exposed=((75, 90),), buckets=(bucket(0, 75, 75, 90),))
    late = record(backward=50, exposed=((80, 90),), buckets=(bucket(0, 80, 80, 90),))
    return ranks_of([[early, early], [late, late]], baseline_ms)


def test_figures_come_from_the_records_of_all_ranks() -> None:
    ranks = two_ranks()
    for entry, rank in ((50, 0), (90, 1)):
        ranks[rank].baseline[:] = ranks_of([[]], [entry] * 20)[0].baseline
    figures = run_figures(ranks, NODES[:2])
    size = arithmetic.size_figures(figures, ranks, 1, {"step_seconds": 0.095})
    assert size is not None
    assert (size.num_nodes, size.num_ranks, size.samples) == (1, 2, 16)
    assert size.step_s == pytest.approx(0.1)
    assert size.no_network_s == pytest.approx(0.07)  # a mean over ranks: 50 and 90 ms
    assert size.no_network_spread == pytest.approx(1.0)
    assert size.slower_rank_s == pytest.approx(0.0025)  # of two ranks one waits 5 ms
    assert size.network_s == pytest.approx(0.01)
    assert size.predicted_step_s == 0.095


def test_one_slow_rank_is_lost_once_and_not_also_as_contention() -> None:
    """A rank that computes 40 ms longer, also with nothing sent: the other waits for it."""
    slow = replace(
        WEAK, num_ranks=2, samples=16, step_s=0.24, no_network_s=0.21, network_s=0.0
    )  # 190 and 230 ms: a mean of 210
    lost = arithmetic.lost(replace(slow, slower_rank_s=0.02), ALONE)
    assert lost is not None
    assert (lost.slower_rank_s, lost.contention_s) == (0.02, pytest.approx(0.02))
    assert lost.other_s == pytest.approx(0.0)


def test_a_run_without_steps_or_baseline_has_what_it_has() -> None:
    assert arithmetic.size_figures(run_figures(ranks_of([[], []]), (0, 0)), [], 1, None) is None
    ranks = two_ranks(baseline_ms=())
    size = arithmetic.size_figures(run_figures(ranks, (0, 0)), ranks, 1, None)
    assert size is not None
    assert (size.no_network_s, size.no_network_spread) == (None, None)
    assert size.predicted_step_s is None
    ranks = two_ranks(baseline_ms=[50] * 10 + [100] * 10)
    size = arithmetic.size_figures(run_figures(ranks, (0, 0)), ranks, 1, None)
    assert size is not None
    assert size.no_network_spread == pytest.approx(100 / 75)
