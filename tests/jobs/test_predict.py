import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ddp.calibrate import Calibration
from ddp.cost import inter_node_bound
from ddp.fabric import Fabric
from ddp.fixed import FixedCost
from ddp.plan import BucketLayout, ReductionPlan
from jobs.argument import NodeRates
from jobs.predict import (
    Compute,
    ComputeStep,
    FixedCosts,
    barrier_s,
    known_fabric,
    predict,
    prediction_document,
    priced_fabric,
    slowest_rank,
    write_prediction,
)
from jobs.rankrun import compute_step
from jobs.train import MeasuredStep
from tests.jobs.samples import MS, bucket, record

MB = 1_000_000
COST = FixedCost(num_stages=6, small_s=0.002, some_s=0.003)
NODE_OF = (0, 0, 1, 1)
CALIBRATION = Calibration(alpha_inter_s=0.0, alpha_intra_s=0.0, intra_bytes_per_s=1e12)
COMPUTE = Compute(
    step_s=0.2, backward_s=0.12, bucket_bytes=(MB, MB), ready_s=(0.06, 0.12), num_steps=10
)


def rates(*bytes_per_s: float | None) -> list[NodeRates]:
    return [
        NodeRates(out_bytes_per_s=rate, in_bytes_per_s=rate, intra_bytes_per_s=None)
        for rate in bytes_per_s
    ]


def plan(algorithm: str, num_buckets: int = 2, node_of: tuple[int, ...] = NODE_OF) -> ReductionPlan:
    bucket = BucketLayout("float32", ("p",), (MB // 4,), 1)
    return ReductionPlan(algorithm, "contiguous", 0, node_of, (bucket,) * num_buckets)


def test_the_slowest_rank_and_the_middle_step_count() -> None:
    def step(step_s: float, ready_s: float) -> ComputeStep:
        return ComputeStep(step_s, step_s / 2, (8,), (ready_s,))

    compute = slowest_rank(
        [
            [step(1.0, 0.1), step(2.0, 0.4), step(1.5, 0.2)],
            [step(1.2, 0.3), step(1.1, 0.1), step(1.0, 0.1)],
        ]
    )
    # the slowest of each step: 1.2 2.0 1.5, ready 0.3 0.4 0.2
    assert compute == Compute(1.5, 0.75, (8,), (0.3,), 3)


@pytest.mark.parametrize(("algorithm", "sent_share"), [("ring", 1.5), ("hierarchical", 1.0)])
def test_the_link_sets_the_price(algorithm: str, sent_share: float) -> None:
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    prediction = predict(plan(algorithm), fabric, COMPUTE, overlap=True)
    each_s = sent_share * MB / (20 * MB)
    assert prediction["bucket_seconds"] == pytest.approx([each_s, each_s], rel=1e-3)
    assert prediction["comm_seconds"] == pytest.approx(2 * each_s, rel=1e-3)
    assert each_s * 20 * MB >= inter_node_bound(MB, 2)
    exposed_s = max(0.12, 0.06 + each_s) + each_s - 0.12
    assert prediction["exposed_seconds"] == pytest.approx(exposed_s, rel=1e-3)
    assert prediction["step_seconds"] == pytest.approx(0.2 + exposed_s, rel=1e-3)
    assert (
        prediction["full_overlap_step_seconds"]
        <= prediction["step_seconds"]
        <= prediction["no_overlap_step_seconds"]
    )


def test_the_slower_node_is_the_bottleneck() -> None:
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 5 * MB), CALIBRATION)
    assert fabric is not None
    prediction = predict(plan("hierarchical"), fabric, COMPUTE, overlap=True)
    assert prediction["bottleneck"]["node"] == 1
    assert prediction["bottleneck"]["direction"] in ("out", "in")
    json.dumps(prediction, allow_nan=False)


def test_without_overlap_all_communication_comes_after_backward() -> None:
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    prediction = predict(plan("hierarchical"), fabric, COMPUTE, overlap=False)
    assert prediction["step_seconds"] == pytest.approx(0.2 + 2 * 0.05, rel=1e-3)
    assert prediction["step_seconds"] == prediction["no_overlap_step_seconds"]


@pytest.mark.parametrize("overlap", [True, False])
def test_each_reduction_of_a_step_is_paid_for(overlap: bool) -> None:
    """Micro-steps that are reduced one by one: each waits for its own, after its own backward."""
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    once = predict(plan("hierarchical"), fabric, COMPUTE, overlap=overlap)
    compute = replace(COMPUTE, num_reductions=4)
    each = predict(plan("hierarchical"), fabric, compute, overlap=overlap)
    assert once["exposed_seconds"] == pytest.approx(0.05 if overlap else 0.10, rel=1e-3)
    assert each["exposed_seconds"] == pytest.approx(4 * once["exposed_seconds"])
    assert each["comm_seconds"] == pytest.approx(4 * once["comm_seconds"])
    assert each["step_seconds"] == pytest.approx(0.2 + 4 * once["exposed_seconds"])
    assert each["no_overlap_step_seconds"] == pytest.approx(0.2 + 4 * 0.1, rel=1e-3)
    assert each["full_overlap_step_seconds"] == pytest.approx(0.4, rel=1e-3)
    assert each["bucket_seconds"] == once["bucket_seconds"]


@pytest.mark.parametrize(
    ("node_of", "rounds"), [((0, 0, 1, 1), 2), ((0, 1, 2), 2), ((0, 1), 1), ((0, 0, 0, 0, 1), 3)]
)
def test_a_barrier_takes_a_round_for_each_doubling(node_of: tuple[int, ...], rounds: int) -> None:
    slow = Calibration(alpha_inter_s=0.003, alpha_intra_s=0.001, intra_bytes_per_s=None)
    fabric = priced_fabric(node_of, rates(*[20 * MB] * 3), slow)
    assert fabric is not None
    silent = plan("noop", node_of=node_of)
    barrier = predict(silent, fabric, COMPUTE, overlap=True, barrier=True)
    assert barrier["comm_seconds"] == pytest.approx(rounds * 0.003)
    assert barrier["step_seconds"] == pytest.approx(0.2 + rounds * 0.003)
    assert barrier["bottleneck"] is None


def test_a_barrier_inside_one_node_or_of_one_rank() -> None:
    slow = Calibration(alpha_inter_s=None, alpha_intra_s=0.001, intra_bytes_per_s=None)
    for node_of, seconds in (((0, 0), 0.001), ((0,), 0.0)):
        fabric = priced_fabric(node_of, None, slow)
        assert fabric is not None
        assert barrier_s(fabric) == pytest.approx(seconds)


def test_how_often_a_step_reduces_is_read_off_its_records() -> None:
    start_ns, end_ns = 500 * MS, 600 * MS
    micro_steps = [bucket(0, 110, 110, 110), bucket(1, 120, 120, 120)]
    last = [bucket(0, 540, 540, 541), bucket(1, 590, 590, 595)]
    found = compute_step(MeasuredStep(record(buckets=[*micro_steps, *last]), (start_ns, end_ns)))
    assert found.num_reductions == 2
    assert found.bucket_bytes == (1_000_000, 1_000_000)
    assert found.ready_s == (pytest.approx(0.040), pytest.approx(0.090))
    assert found.backward_s == pytest.approx(0.1)
    assert compute_step(MeasuredStep(record(), (0, end_ns))).num_reductions == 1


def test_nothing_sent_costs_nothing() -> None:
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    prediction = predict(plan("noop"), fabric, COMPUTE, overlap=True)
    assert (prediction["step_seconds"], prediction["comm_seconds"]) == (0.2, 0.0)
    assert prediction["bottleneck"] is None


def test_the_backends_own_is_priced_as_a_ring_in_rank_order() -> None:
    scattered = (0, 1, 0, 1)
    fabric = priced_fabric(scattered, rates(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    native = predict(plan("native", node_of=scattered), fabric, COMPUTE, overlap=True)
    ring = predict(plan("ring", node_of=scattered), fabric, COMPUTE, overlap=True)
    assert native["comm_seconds"] == pytest.approx(2 * ring["comm_seconds"])


def test_the_backends_own_keeps_two_segments_in_flight() -> None:
    slow = Calibration(0.001, 0.001, None)
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 20 * MB), slow)
    assert fabric is not None
    native = predict(plan("native"), fabric, COMPUTE, overlap=True)
    # two buckets, each 1.5 MB at 20 MB/s; of its six stages' fixed costs one is not hidden
    assert native["comm_seconds"] == pytest.approx(2 * (0.075 + 0.001))


def test_each_bucket_is_priced_by_what_it_goes_through() -> None:
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    chosen = [
        replace(plan(name, 1).buckets[0], algorithm=name) for name in ("hierarchical", "native")
    ]
    found = predict(
        replace(plan("ring"), algorithm="auto", buckets=tuple(chosen)),
        fabric,
        COMPUTE,
        overlap=True,
    )
    each = [
        predict(plan(name), fabric, COMPUTE, overlap=True) for name in ("hierarchical", "native")
    ]
    first, second = (prediction["bucket_seconds"][0] for prediction in each)
    assert found["bucket_seconds"] == [first, second]
    assert second == pytest.approx(1.5 * first, rel=1e-3)


BURST = 200_000


def bursting(*bytes_per_s: float) -> list[NodeRates]:
    return [node.model_copy(update={"burst_bytes": BURST}) for node in rates(*bytes_per_s)]


@pytest.mark.parametrize(
    ("ready_s", "second_s"),
    [
        ((0.06, 0.06), 0.05),  # right behind the first one: all was spent
        ((0.06, 0.104), 0.046),  # 4 ms idle let 80,000 bytes through at once
        ((0.06, 0.12), 0.04),  # 10 ms and more: all of it
    ],
)
def test_the_first_bucket_spends_the_burst(ready_s: tuple[float, float], second_s: float) -> None:
    """1 MB at 20 MB/s are 50 ms; a burst of 200,000 bytes spares 10 of them."""
    fabric = priced_fabric(NODE_OF, bursting(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    compute = replace(COMPUTE, ready_s=ready_s)
    found = predict(plan("hierarchical"), fabric, compute, overlap=True)
    assert found["bucket_seconds"] == pytest.approx([0.04, second_s], abs=1e-5)
    ended_s = max(ready_s[0] + 0.04, ready_s[1]) + second_s
    assert found["exposed_seconds"] == pytest.approx(ended_s - 0.12, abs=1e-5)


def test_what_a_step_leaves_idle_comes_back_before_the_next() -> None:
    """A step that does nothing but reduce finds what passes while it computes: 5 ms of the 10."""
    fabric = priced_fabric(NODE_OF, bursting(20 * MB, 20 * MB), CALIBRATION)
    assert fabric is not None
    compute = Compute(0.005, 0.0, (MB,), (0.0,), 1)
    found = predict(plan("hierarchical", 1), fabric, compute, overlap=True)
    assert found["bucket_seconds"] == pytest.approx([0.045], abs=1e-5)


def test_an_algorithm_that_was_timed_has_its_own_cost() -> None:
    slow = Calibration(0.003, 0.003, None)
    fabric = priced_fabric(NODE_OF, rates(20 * MB, 20 * MB), slow)
    assert fabric is not None
    costs = {"hierarchical": FixedCost(num_stages=4, small_s=0.008, some_s=0.0)}
    timed = predict(plan("hierarchical"), fabric, COMPUTE, overlap=True, costs=costs)
    assert timed["bucket_seconds"] == pytest.approx([0.058] * 2)
    other = predict(plan("hierarchical"), fabric, COMPUTE, overlap=True, costs={"ring": COST})
    assert other["bucket_seconds"] == pytest.approx([0.062] * 2)


def test_a_calibration_is_read_back() -> None:
    found = Calibration(0.1, None, 3.0, {"ring": COST})
    assert FixedCosts.from_json(json.loads(json.dumps(asdict(found)))) == FixedCosts(
        0.1, None, 3.0, {"ring": COST}
    )
    older = {"alpha_inter_s": 0.1, "alpha_intra_s": None, "intra_bytes_per_s": 3.0}
    assert FixedCosts.from_json(older) == FixedCosts(0.1, None, 3.0)
    told_more = {**older, "algorithms": {"ring": {**asdict(COST), "start_s": 0.001}}}
    assert FixedCosts.from_json(told_more) == FixedCosts(0.1, None, 3.0, {"ring": COST})
    link = {"out_bytes_per_s": 1.0, "in_bytes_per_s": 1.0, "intra_bytes_per_s": None}
    assert NodeRates.model_validate(link).burst_bytes is None


def test_a_fabric_has_rates_where_all_that_are_used_were_measured() -> None:
    known = known_fabric(NODE_OF, rates(20 * MB, 30 * MB))
    assert [node.nic_out.bytes_per_s for node in known.links] == [20 * MB, 30 * MB]
    assert known_fabric(NODE_OF, rates(20 * MB, None)) == Fabric(NODE_OF)
    assert known_fabric((0, 1), None) == Fabric((0, 1))
    assert len(known_fabric((1, 1), None).links) == 2


@pytest.mark.parametrize("links", [None, rates(20 * MB, None)])
def test_what_was_not_measured_is_not_predicted(links: list[NodeRates] | None) -> None:
    assert priced_fabric(NODE_OF, links, CALIBRATION) is None


@pytest.mark.parametrize("node_of", [(0,), (0, 0, 0)])
def test_one_node_needs_no_link(node_of: tuple[int, ...]) -> None:
    fabric = priced_fabric(node_of, None, Calibration(None, None, None))
    assert fabric is not None
    prediction = predict(plan("hierarchical", node_of=node_of), fabric, COMPUTE, overlap=True)
    assert prediction["step_seconds"] == pytest.approx(0.2)


def test_the_file_says_what_it_was_made_from(tmp_path: Path) -> None:
    links = rates(20 * MB, 20 * MB)
    fabric = priced_fabric(NODE_OF, links, CALIBRATION)
    assert fabric is not None
    prediction = predict(plan("ring"), fabric, COMPUTE, overlap=True)
    write_prediction(tmp_path, prediction_document(prediction, COMPUTE, links, CALIBRATION))
    written = json.loads((tmp_path / "prediction.json").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["prediction.json"]
    assert written["step_seconds"] == prediction["step_seconds"]
    assert written["inputs"]["compute"]["step_s"] == COMPUTE.step_s
    assert written["inputs"]["links"][1]["out_bytes_per_s"] == 20 * MB
    assert written["inputs"]["calibration"]["intra_bytes_per_s"] == 1e12


def test_no_prediction_is_null_not_zero() -> None:
    why = "the links were not measured"
    written = prediction_document(why, COMPUTE, None, CALIBRATION)
    assert (written["step_seconds"], written["comm_seconds"]) == (None, None)
