"""ReductionPlan: packing, segments, and JSON that comes back as the same plan or not at all."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp.algorithms import ALGORITHMS
from ddp.errors import PlanError, UsageError
from ddp.plan import MIB, BucketLayout, ReductionPlan, choose_segments, make_buckets

PLAN = ReductionPlan(
    algorithm="ring",
    ring_order="shuffled",
    ring_seed=3,
    node_of=(1, 0, 1),
    buckets=(
        BucketLayout("float32", ("head.bias", "head.weight"), (10, 640), 2, status_numel=4),
        BucketLayout("bfloat16", ("body.weight",), (0,), 1),
    ),
)


class TestJson:
    def test_a_plan_comes_back_from_json_text(self):
        again = ReductionPlan.from_json(json.loads(json.dumps(PLAN.to_json())))

        assert again == PLAN
        assert again.sha256 == PLAN.sha256

    def test_the_document_is_written_out(self):
        assert PLAN.to_json() == {
            "algorithm": "ring",
            "ring_order": "shuffled",
            "ring_seed": 3,
            "node_of": [1, 0, 1],
            "buckets": [
                {
                    "dtype": "float32",
                    "parameters": ["head.bias", "head.weight"],
                    "numels": [10, 640],
                    "segments": 2,
                    "status_numel": 4,
                    "algorithm": "ring",
                },
                {
                    "dtype": "bfloat16",
                    "parameters": ["body.weight"],
                    "numels": [0],
                    "segments": 1,
                    "status_numel": 0,
                    "algorithm": "ring",
                },
            ],
        }

    def test_the_hash_is_the_same_on_every_machine(self):
        assert PLAN.sha256 == "96ac19b657c51475abde5aca3a286923849fcc38798d6db5fcf8e9707aebc92e"

    def test_whatever_changes_the_order_of_sums_changes_the_hash(self):
        first, second = PLAN.buckets
        changed = [
            PLAN,
            replace(PLAN, algorithm="hierarchical"),
            replace(PLAN, ring_order="contiguous"),
            replace(PLAN, ring_seed=4),
            replace(PLAN, node_of=(0, 1, 1)),
            replace(PLAN, buckets=(second, first)),
            replace(PLAN, buckets=(replace(first, segments=3), second)),
            replace(PLAN, buckets=(replace(first, status_numel=5), second)),
            replace(PLAN, buckets=(replace(first, numels=(640, 10)), second)),
            replace(PLAN, buckets=(replace(first, dtype="float64"), second)),
        ]

        assert len({plan.sha256 for plan in changed}) == len(changed)

    @pytest.mark.parametrize(
        ("where", "value", "rule"),
        [
            (("ring_seed",), "3", "plan.ring_seed: '3', where int belongs"),
            (("ring_seed",), True, "plan.ring_seed: True, where int belongs"),
            (("ring_seed",), 3.0, "plan.ring_seed: 3.0, where int belongs"),
            (("algorithm",), None, "plan.algorithm: None, where str belongs"),
            (("node_of",), "101", "plan.node_of: '101', where a list belongs"),
            (("node_of", 1), "0", r"plan.node_of\[1\]: '0', where int belongs"),
            (("colour",), "red", "plan: .*'colour'.*, where exactly the keys"),
            (("buckets", 0), 5, r"plan.buckets\[0\]: 5, where exactly the keys"),
            (("buckets", 0, "numels"), [10], "2 parameters with 1 sizes"),
            (("buckets", 1, "segments"), 0, "at least one segment"),
            (("buckets", 1, "numels", 0), -1, "no size below 0"),
        ],
    )
    def test_what_is_no_plan_is_refused_with_its_place(self, where, value, rule):
        document = PLAN.to_json()
        inner = document
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = value

        with pytest.raises(PlanError, match=rule):
            ReductionPlan.from_json(document)

    def test_a_missing_key_is_refused(self):
        document = PLAN.to_json()
        del document["node_of"]

        with pytest.raises(PlanError, match="where exactly the keys"):
            ReductionPlan.from_json(document)

    def test_a_plan_from_before_auto_comes_back_too(self):
        document = PLAN.to_json()
        for bucket in document["buckets"]:
            del bucket["algorithm"]

        assert ReductionPlan.from_json(document) == PLAN

    def test_a_bucket_that_goes_another_way_than_its_plan_is_refused(self):
        document = PLAN.to_json()
        document["buckets"][1]["algorithm"] = "native"

        with pytest.raises(PlanError, match=r"plan.buckets\[1\]: 'native' in a plan of 'ring'"):
            ReductionPlan.from_json(document)


class TestSchedule:
    def test_a_plan_builds_the_schedule_it_names(self):
        schedule = PLAN.schedule()

        assert (schedule.name, schedule.num_ranks) == ("ring", 3)

    def test_native_and_noop_have_none(self):
        for name in ("native", "noop"):
            assert replace(PLAN, algorithm=name).schedule() is None

    def test_an_unknown_algorithm_is_refused(self):
        with pytest.raises(UsageError, match="unknown algorithm 'rign'"):
            replace(PLAN, algorithm="rign").schedule()

    def test_a_bucket_counts_its_status(self):
        assert [bucket.numel for bucket in PLAN.buckets] == [654, 0]


def floats(*numels):
    return [(f"p{index}", numel, "float32", 4) for index, numel in enumerate(numels)]


def names(buckets):
    return [bucket[1] for bucket in buckets]


class TestBuckets:
    def test_parameters_are_packed_in_reverse_until_the_cap_is_reached(self):
        quarter = MIB // 16  # elements of 4 bytes: a quarter MiB
        parameters = floats(*[quarter] * 7)

        buckets = make_buckets(parameters, 1.0, 0.5, per_parameter=False)

        assert names(buckets) == [("p6", "p5"), ("p4", "p3", "p2", "p1"), ("p0",)]
        assert buckets[0] == ("float32", ("p6", "p5"), (quarter, quarter))

    def test_a_parameter_above_the_cap_is_not_split(self):
        buckets = make_buckets(floats(10, 10 * MIB, 10), 1.0, 1.0, per_parameter=False)

        assert names(buckets) == [("p2", "p1"), ("p0",)]

    def test_the_first_cap_never_exceeds_the_cap(self):
        half = MIB // 8

        assert len(make_buckets(floats(half, half), 0.5, 1.0, per_parameter=False)) == 2

    def test_per_parameter_gives_each_its_own(self):
        assert names(make_buckets(floats(1, 0, 3), 25, 1, per_parameter=True)) == [
            ("p2",),
            ("p1",),
            ("p0",),
        ]

    def test_dtypes_do_not_mix_and_the_first_complete_bucket_comes_first(self):
        parameters = [
            ("early", 4, "float32", 4),
            ("half", 4, "bfloat16", 2),
            ("late", 4, "float32", 4),
        ]

        # "late" and "early" share a bucket that is complete only when "early" is
        assert make_buckets(parameters, 25, 1, per_parameter=False) == (
            ("bfloat16", ("half",), (4,)),
            ("float32", ("late", "early"), (4, 4)),
        )

    def test_no_parameters_make_no_buckets(self):
        assert make_buckets([], 25, 1, per_parameter=False) == ()

    @pytest.mark.parametrize("cap", [-1, float("nan"), float("inf")])
    def test_a_cap_that_is_no_size_is_refused(self, cap):
        with pytest.raises(PlanError, match="bucket_cap_mb"):
            make_buckets(floats(1), cap, 1, per_parameter=False)
        with pytest.raises(PlanError, match="first_bucket_mb"):
            make_buckets(floats(1), 1, cap, per_parameter=False)

    def test_two_parameters_of_one_name_are_refused(self):
        with pytest.raises(PlanError, match="same name"):
            make_buckets([("p", 1, "float32", 4)] * 2, 1, 1, per_parameter=False)

    @given(
        numels=st.lists(st.integers(0, 3 * MIB // 8), max_size=30),
        cap=st.sampled_from([0, 0.25, 1, 2.5, 25]),
    )
    def test_one_dtype_is_packed_as_torch_packs_it(self, numels, cap):
        parameters = floats(*numels)
        first = min(cap, 1)

        ours = names(make_buckets(parameters, cap, 1, per_parameter=False))

        tensors = [torch.empty(numel, device="meta") for numel in reversed(numels)]
        limits = [int(first * MIB), int(cap * MIB)]
        theirs = _torch_buckets(tensors, limits)
        reverse = [name for name, *_ in reversed(parameters)]
        assert ours == [tuple(reverse[index] for index in bucket) for bucket in theirs]

    @given(
        st.lists(
            st.tuples(
                st.integers(0, MIB // 2),
                st.sampled_from([("float32", 4), ("bfloat16", 2), ("complex64", 8)]),
            ),
            max_size=30,
        )
    )
    def test_every_parameter_is_in_one_bucket_of_its_dtype(self, drawn):
        parameters = [(f"p{i}", numel, *kind) for i, (numel, kind) in enumerate(drawn)]

        buckets = make_buckets(parameters, 1, 0.5, per_parameter=False)

        packed = [(n, k, b[0]) for b in buckets for n, k in zip(b[1], b[2], strict=True)]
        assert sorted(packed) == sorted((n, k, dtype) for n, k, dtype, _ in parameters)
        ready = [int(bucket[1][-1][1:]) for bucket in buckets]
        assert ready == sorted(ready, reverse=True)


def _torch_buckets(tensors, limits):
    if not tensors:
        return []
    return torch.distributed._compute_bucket_assignment_by_size(tensors, limits)[0]


class TestSegments:
    @pytest.mark.parametrize(
        ("algorithm", "num_bytes", "segments"),
        [
            ("hierarchical", 0, 1),
            ("hierarchical", MIB - 1, 1),
            ("hierarchical", MIB, 2),
            ("hierarchical", 16 * MIB, 8),
            ("hierarchical", 100 * MIB, 8),
            ("ring", MIB, 2),
            ("ring", 100 * MIB, 4),
            ("hierarchical_leader", 100 * MIB, 8),
            ("halving_doubling", 100 * MIB, 4),
            ("parameter_server", MIB, 2),
            ("parameter_server", 100 * MIB, 8),
            ("recursive_doubling", 100 * MIB, 8),
            ("native", 100 * MIB, 1),
            ("noop", 100 * MIB, 1),
        ],
    )
    def test_large_buckets_get_more_up_to_what_pays(self, algorithm, num_bytes, segments):
        assert choose_segments(algorithm, num_bytes, 2) == segments
        assert choose_segments(algorithm, num_bytes, 1) == 1

    def test_every_algorithm_has_an_answer(self):
        assert all(choose_segments(name, 10**9, 3) >= 1 for name in ALGORITHMS)

    def test_an_unknown_algorithm_is_refused(self):
        with pytest.raises(UsageError, match="did you mean 'ring'"):
            choose_segments("rinng", 1, 2)
