"""Cost: a step's prediction between its bounds, and the formulas with their worked example."""

import random

import pytest

from ddp.cost import (
    algorithm_bandwidth,
    bus_bandwidth,
    inter_node_bound,
    predict_step,
    relative_error,
)
from ddp.errors import UsageError


class TestPredictStep:
    def test_buckets_are_reduced_in_order_from_when_they_are_ready(self):
        # 1.0 to 3.0, then 3.0 to 4.0 (ready at 2.0), then 6.0 to 9.0; backward ends at 6.0
        step = predict_step(10.0, [1.0, 2.0, 6.0], [2.0, 1.0, 3.0], backward_s=6.0, overlap=True)

        assert step.exposed_s == pytest.approx(3.0)
        assert step.step_s == pytest.approx(13.0)
        assert step.communication_s == pytest.approx(6.0)
        assert step.full_overlap_step_s == pytest.approx(10.0)
        assert step.no_overlap_step_s == pytest.approx(16.0)

    def test_without_overlap_all_of_it_is_exposed(self):
        step = predict_step(10.0, [1.0, 2.0, 6.0], [2.0, 1.0, 3.0], backward_s=6.0, overlap=False)

        assert (step.exposed_s, step.step_s) == (pytest.approx(6.0), pytest.approx(16.0))

    def test_no_buckets_leave_the_step_alone(self):
        step = predict_step(10.0, [], [], backward_s=6.0, overlap=True)

        assert (step.step_s, step.communication_s, step.exposed_s) == (10.0, 0, 0.0)

    def test_any_step_lies_between_its_bounds(self):
        draw = random.Random(1)
        for _ in range(200):
            backward_s = draw.uniform(0, 1)
            ready_s = sorted(draw.uniform(0, backward_s) for _ in range(draw.randrange(6)))
            bucket_s = [draw.uniform(0, 0.5) for _ in ready_s]
            baseline_s = backward_s + draw.uniform(0, 1)
            for overlap in (True, False):
                step = predict_step(baseline_s, ready_s, bucket_s, backward_s, overlap)
                assert step.full_overlap_step_s <= step.step_s + 1e-12
                assert step.step_s <= step.no_overlap_step_s + 1e-12

    def test_every_bucket_needs_both_times(self):
        with pytest.raises(UsageError, match="1 ready times for 2 buckets"):
            predict_step(1.0, [0.1], [0.1, 0.1], backward_s=0.5, overlap=True)


class TestFormulas:
    def test_seven_billion_parameters_in_bfloat16(self):
        num_bytes = 7_000_000_000 * 2
        compute_s = 0.5

        sent = 2 * (1024 - 1) / 1024 * num_bytes  # by each rank of a flat ring
        inside = predict_step(compute_s, [0.0], [sent / 900e9], compute_s, overlap=True)
        between = predict_step(compute_s, [0.0], [sent / 25e9], compute_s, overlap=True)

        assert sent == pytest.approx(28e9, rel=0.01)
        assert inside.communication_s == pytest.approx(0.031, abs=0.0005)
        assert between.communication_s == pytest.approx(1.12, abs=0.005)
        assert between.communication_s / inside.communication_s == pytest.approx(36)
        efficiency = {
            name: tuple(
                round(100 * compute_s / step_s)
                for step_s in (step.no_overlap_step_s, step.full_overlap_step_s)
            )
            for name, step in (("inside", inside), ("between", between))
        }
        assert efficiency == {"inside": (94, 100), "between": (31, 45)}

    @pytest.mark.parametrize(("num_ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
    def test_bus_bandwidth(self, num_ranks, factor):
        algbw = algorithm_bandwidth(3_000_000_000, 2.0)

        assert algbw == 1.5e9
        assert bus_bandwidth(algbw, num_ranks) == pytest.approx(factor * 1.5e9)

    def test_one_rank_has_no_bus_bandwidth(self):
        assert bus_bandwidth(1e9, 1) is None

    def test_what_took_no_time_has_no_rate(self):
        assert algorithm_bandwidth(1000, 0.0) is None
        assert relative_error(1.0, 0.0) is None

    def test_bounds(self):
        assert [inter_node_bound(1000, nodes) for nodes in (1, 2, 4)] == [0, 1000, 1500]

    def test_error_of_a_prediction(self):
        assert relative_error(predicted=279, measured=286) == pytest.approx(-0.0245, abs=0.0001)
