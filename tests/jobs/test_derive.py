"""What records say together, against what was computed by hand (in the comments)."""

from dataclasses import replace

import pytest

from jobs.derive import common, length, step_figures, union
from jobs.figures import run_figures
from jobs.spread import spread
from tests.jobs.samples import MS, NODES, bucket, ranks_of, record, stock_record


def test_intervals_are_merged_and_measured() -> None:
    assert union([(5, 9), (1, 3), (2, 6), (20, 20), (30, 25)]) == [(1, 9)]
    assert length([(1, 3), (2, 6), (8, 9)]) == 6
    assert common([(0, 10)], [(2, 4), (3, 6), (9, 20)]) == 5
    assert common([(0, 1)], [(1, 2)]) == 0


def test_spread_interpolates() -> None:
    sample = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert sample is not None
    assert (sample.mean, sample.median, sample.p10, sample.p90, sample.n) == (
        3.0,
        3.0,
        pytest.approx(1.4),
        pytest.approx(4.6),
        5,
    )
    assert spread([]) is None
    assert spread([2.0]) is not None


def test_communication_is_work_busy_and_hidden() -> None:
    # buckets 50..70 and 80..95: work 20 + 15, no overlap, so busy 35; exposed 80..95: 20 hidden
    step = step_figures([record()] * 4, NODES)
    assert step.comm_work_s == pytest.approx(0.035)
    assert step.comm_busy_s == pytest.approx(0.035)
    assert step.hidden_s == pytest.approx(0.020)
    assert step.straggler_wait_s == 0


def test_busy_is_the_union_of_buckets_that_overlap() -> None:
    # 50..80 and 70..95: work 30 + 25, union 45
    buckets = (bucket(0, 50, 50, 80), bucket(1, 70, 70, 95))
    step = step_figures([record(buckets=buckets)] * 4, NODES)
    assert step.comm_work_s == pytest.approx(0.055)
    assert step.comm_busy_s == pytest.approx(0.045)


def test_a_bucket_starts_when_its_last_rank_is_ready() -> None:
    # rank 3's gradient comes 25 ms after the others': they wait 60..85, then all send 85..95
    early = record(exposed=((60, 95),), buckets=[bucket(0, 60, 60, 95)])
    late = record(exposed=((85, 95),), backward=75, buckets=[bucket(0, 85, 85, 95)])
    step = step_figures([early, early, early, late], NODES)
    assert step.comm_work_s == pytest.approx(0.010)
    assert step.comm_busy_s == pytest.approx(0.010)
    assert step.hidden_s == 0
    # three of four ranks wait 25 ms: 18.75 in the mean, all of it for rank 3
    assert step.straggler_wait_s == pytest.approx(0.01875)
    assert step.held_up_by == {3: pytest.approx(0.01875)}
    # exposed in the mean: (3 x 35 + 10) / 4
    assert step.phase_s["comm_exposed"] == pytest.approx(0.02875)


def test_a_bucket_that_is_reduced_twice_a_step_counts_twice() -> None:
    # two micro-steps, each with two buckets: 10..20 and 20..30, then 60..70 and 75..95
    first, second = [bucket(0, 10, 10, 20), bucket(1, 20, 20, 30)], [bucket(0, 60, 60, 70)]
    buckets = [*first, *second, bucket(1, 75, 75, 95)]
    exposed = ((22, 30), (80, 95))
    step = step_figures([record(buckets=buckets, exposed=exposed)] * 4, NODES)
    assert step.comm_work_s == pytest.approx(0.050)
    assert step.comm_busy_s == pytest.approx(0.050)
    assert step.hidden_s == pytest.approx(0.027)
    assert step.straggler_wait_s == 0
    assert step.bucket_bytes == 4_000_000


def test_each_reduction_waits_for_its_own_slowest_rank() -> None:
    # rank 1 is 5 ms late for the first reduction of the bucket, rank 0 is 8 ms late for the second
    punctual = [bucket(0, 10, 10, 25), bucket(0, 68, 68, 80)]
    early = record(buckets=punctual, exposed=((10, 25), (68, 80)))
    late = replace(
        early,
        buckets=(bucket(0, 15, 15, 25), bucket(0, 60, 60, 80)),
        exposed=((15 * MS, 25 * MS), (60 * MS, 80 * MS)),
    )
    step = step_figures([early, late], (0, 1))
    assert step.held_up_by == {1: pytest.approx(0.0025), 0: pytest.approx(0.004)}
    assert step.comm_work_s == pytest.approx(0.022)  # 15..25 and 68..80


def test_a_meeting_is_a_wait_for_the_slowest_rank() -> None:
    # nothing is reduced; rank 3 comes to the barrier at 90, which lets all go at 92
    silent = bucket(0, 50, 50, 50)
    early = record(buckets=[silent, replace(bucket(1, 60, 60, 92), bytes=0)], exposed=((60, 92),))
    late = record(buckets=[silent, replace(bucket(1, 90, 90, 92), bytes=0)], exposed=((90, 92),))
    step = step_figures([early, early, early, late], NODES)
    assert step.straggler_wait_s == pytest.approx(0.0225)  # three of four, 30 ms
    assert step.held_up_by == {3: pytest.approx(0.0225)}
    assert step.comm_work_s == pytest.approx(0.002)


def test_waiting_for_the_network_is_not_waiting_for_a_rank() -> None:
    # bucket 1 is ready everywhere at 60, but the wire is still busy with bucket 0 until 80
    buckets = (bucket(0, 50, 50, 80), bucket(1, 60, 80, 95))
    step = step_figures([record(exposed=((60, 95),), buckets=buckets)] * 4, NODES)
    assert step.straggler_wait_s == 0


def test_other_waits_of_a_rank_are_not_for_its_first_bucket() -> None:
    # 5 ms at the start of the step, long before this rank has anything to reduce
    buckets = [bucket(0, 60, 60, 95)]
    early = record(exposed=((0, 5), (80, 95)), buckets=buckets)
    late = replace(early, buckets=(bucket(0, 85, 85, 95),))
    step = step_figures([early, late], (0, 1))
    assert step.straggler_wait_s == pytest.approx(0.0025)  # rank 0: 80..85, mean of two ranks


def test_a_step_is_as_long_as_its_slowest_rank() -> None:
    step = step_figures(
        [record(step_ms=100), record(step_ms=130), record(step_ms=110), record()], NODES
    )
    assert step.step_s == 0.130
    assert step.slowest_rank == 1


def test_bytes_are_summed_in_each_node() -> None:
    step = step_figures(
        [record(inter=1), record(inter=2), record(inter=30), record(inter=None)], NODES
    )
    assert step.inter_node_bytes == (3, None)
    assert step.intra_node_bytes == (2_000_000, 2_000_000)


def test_only_steps_that_all_ranks_have_count() -> None:
    steps = [[record(0), record(1)], [record(0)], [record(0), record(1)], [record(0)]]
    figures = run_figures(ranks_of(steps, sums=(None,) * 4), NODES)
    assert [step.step for step in figures.steps] == [0]


def test_of_buckets_that_are_not_told_nothing_is_derived() -> None:
    step = step_figures([stock_record()] * 4, NODES)
    assert (step.comm_work_s, step.comm_busy_s, step.straggler_wait_s) == (None, None, None)
    assert (step.hidden_s, step.bucket_bytes, step.held_up_by) == (None, None, {})
    assert step.phase_s["comm_exposed"] == pytest.approx(0.015)
    assert step.time_lost_s == pytest.approx(0)
    assert step.inter_node_bytes == (None, None)
    # one rank that does not tell is enough: who was the last to be ready is not known
    assert step_figures([stock_record(), *[record()] * 3], NODES).straggler_wait_s is None


def test_where_a_rank_waited_for_another_is_not_taken_for_the_network() -> None:
    figures = run_figures(ranks_of([[stock_record()]] * 4), NODES)
    assert figures.exposed_s == pytest.approx(0.015)
    assert (figures.network_wait_s, figures.straggler_wait_s) == (None, None)
    assert (figures.overlap_ratio, figures.gradient_bytes) == (None, 2_000_000)
    assert figures.communicated
    assert run_figures(ranks_of([[record()]] * 4), NODES).network_wait_s == pytest.approx(0.015)
