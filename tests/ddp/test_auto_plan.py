"""A plan that `auto` wrote: each bucket names what it goes through."""

import json
from dataclasses import replace

import pytest

from ddp.errors import PlanError
from ddp.plan import BucketLayout, ReductionPlan

AUTO_PLAN = ReductionPlan(
    algorithm="auto",
    ring_order="contiguous",
    ring_seed=0,
    node_of=(0, 0, 1),
    buckets=(
        BucketLayout("float32", ("head",), (640,), 2, algorithm="hierarchical"),
        BucketLayout("float32", ("body",), (9,), 1, algorithm="ring"),
        BucketLayout("float32", ("tail",), (9,), 1, algorithm="native"),
    ),
)


def test_it_keeps_what_each_bucket_goes_through() -> None:
    again = ReductionPlan.from_json(json.loads(json.dumps(AUTO_PLAN.to_json())))

    assert again == AUTO_PLAN
    assert again.algorithm == "auto"
    assert [bucket.algorithm for bucket in again.buckets] == ["hierarchical", "ring", "native"]
    assert again.algorithms == ("hierarchical", "ring", "native")


def test_the_hash_tells_what_was_chosen() -> None:
    other = replace(AUTO_PLAN.buckets[0], algorithm="ring")

    assert replace(AUTO_PLAN, buckets=(other, *AUTO_PLAN.buckets[1:])).sha256 not in (
        AUTO_PLAN.sha256,
        replace(AUTO_PLAN, algorithm="ring").sha256,
    )


def test_each_algorithm_has_its_own_schedule() -> None:
    schedules = [AUTO_PLAN.schedule(name) for name in AUTO_PLAN.algorithms]

    assert [schedule and schedule.name for schedule in schedules] == [
        *("hierarchical", "ring"),
        None,
    ]


@pytest.mark.parametrize("algorithm", ["", "auto"])
def test_a_bucket_for_which_nothing_was_chosen_is_refused(algorithm: str) -> None:
    unchosen = replace(AUTO_PLAN.buckets[1], algorithm=algorithm)

    with pytest.raises(PlanError, match="bucket 1: auto must choose"):
        replace(AUTO_PLAN, buckets=(AUTO_PLAN.buckets[0], unchosen))


def test_other_plans_name_one_algorithm_whatever_their_buckets_say() -> None:
    assert {b.algorithm for b in replace(AUTO_PLAN, algorithm="ring").buckets} == {"ring"}
    assert replace(AUTO_PLAN, algorithm="ring", buckets=()).algorithms == ("ring",)
