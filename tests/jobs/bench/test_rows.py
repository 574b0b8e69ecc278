"""Rows of a bench from what ranks told: times of the slowest, ratios, bytes, the star."""

from dataclasses import replace

import pytest

from jobs.bench.rows import Shape
from tests.jobs.bench.samples import (
    HIER,
    MIXED,
    MIXED_NATIVE,
    NATIVE,
    RING,
    bench_spec,
    ring_share,
    rows,
)

TIMES = [[[300.0, 310.0, 305.0], [298.0, 312.0, 304.0], [200.0, 206.0, 204.0]]]


def test_a_round_is_as_long_as_its_slowest_rank() -> None:
    native, _, hier = rows(bench_spec(NATIVE, RING, HIER), TIMES, sent=[1.5, 1.5, 1.0])
    assert hier.rounds_s == pytest.approx((0.200, 0.206, 0.204))
    document = hier.to_json()
    assert document["time_s"]["median"] == pytest.approx(0.204)
    assert document["time_s"]["n"] == 3
    assert document["algbw_bytes_per_second"] == pytest.approx((4 << 20) / 0.204)
    assert document["busbw_bytes_per_second"] == pytest.approx(1.5 * (4 << 20) / 0.204)
    assert document["limit_ratio"] == pytest.approx(0.1 / 0.204)
    assert document["speedup_over_native"] == pytest.approx(1.5, abs=0.005)
    assert document["speedup_over_native_low"] < 1.5 < document["speedup_over_native_high"]
    assert native.to_json()["speedup_over_native"] == 1.0


def test_bytes_are_counted_where_ranks_tell_them() -> None:
    native, ring, hier = rows(bench_spec(NATIVE, RING, HIER), TIMES, sent=[1.5, 1.5, 1.0])
    assert (native.counted, ring.counted, hier.counted) == (False, True, True)
    assert hier.to_json()["payload_bytes"] == 4 << 20
    assert (hier.payload_ratio, hier.bound_ratio) == (1.0, 1.0)
    assert (native.payload_ratio, native.bound_ratio) == (1.5, 1.5)
    assert (hier.ceiling, ring.ceiling) == (1.5, 1.5)


@pytest.mark.parametrize(
    ("node_of", "ceiling"),
    [((0, 0, 1, 1), 1.5), ((0, 0, 0, 0, 1, 1, 1, 1), 1.75), ((0, 1, 0, 1), 3.0)],
)
def test_the_ceiling_is_what_native_sends_over_the_least(
    node_of: tuple[int, ...], ceiling: float
) -> None:
    shape = Shape(2, len(node_of) // 2)
    found = rows(bench_spec(NATIVE, HIER), [[[30.0], [20.0]]], shape, sent=[ring_share(node_of), 1])
    assert found[1].ceiling == pytest.approx(ceiling, rel=1e-3)


def test_a_star_only_where_the_win_exceeds_the_spread() -> None:
    spec = bench_spec(NATIVE, RING, HIER)
    assert [row.fastest for row in rows(spec, TIMES)] == [False, False, True]
    noise = [[[300.0, 310.0, 305.0], [310.0, 298.0, 304.0], [303.0, 312.0, 301.0]]]
    assert not any(row.fastest for row in rows(spec, noise))
    second = [[[300.0, 310.0, 305.0], [207.0, 199.0, 206.0], [200.0, 206.0, 204.0]]]
    assert not any(row.fastest for row in rows(spec, second))  # not surely faster than ring
    once = [[[300.0], [200.0]]]  # one round tells nothing of the spread
    assert not any(row.fastest for row in rows(bench_spec(NATIVE, HIER, rounds=1), once))


def test_each_placement_has_a_native_of_its_own() -> None:
    spec = bench_spec(NATIVE, HIER, MIXED_NATIVE, MIXED)
    found = rows(spec, [[[30.0] * 3, [20.0] * 3, [60.0] * 3, [20.0] * 3]], sent=[1.5, 1, 3, 1])
    assert [row.to_json()["speedup_over_native"] for row in found] == pytest.approx([1, 1.5, 1, 3])
    assert [row.ceiling for row in found] == [1.5, 1.5, 3.0, 3.0]


def test_without_native_there_is_no_ratio() -> None:
    (row,) = rows(bench_spec(HIER), [[[20.0] * 3]])
    assert row.to_json()["speedup_over_native"] is None
    assert row.to_json()["ceiling_over_native"] is None
    assert not row.fastest


def test_one_node_has_no_link_between_nodes() -> None:
    (row,) = rows(bench_spec(HIER), [[[20.0] * 3]], Shape(1, 2), sent=[0.0], limit_ms=None)
    document = row.to_json()
    assert document["payload_bytes_ratio"] == 0
    assert [document[key] for key in ("bound_ratio", "limit_ratio", "limit_s")] == [None] * 3
    assert document["limit_of"] is None


def test_on_one_node_its_memory_is_the_limit() -> None:
    one = {"sent": [0.0], "limit_ms": None, "memory_ms": [5.0, 9.0, 3.0]}  # to 6, 10, 4 from 1
    (row,) = rows(bench_spec(HIER), [[[20.0] * 3]], Shape(1, 2), **one)
    assert (row.limit_of, row.limit_s) == ("memory", pytest.approx(0.005))
    assert row.to_json()["limit_ratio"] == pytest.approx(0.25)


def test_wrong_sums_of_all_ranks_are_added() -> None:
    (row,) = rows(bench_spec(HIER), [[[20.0] * 3]], wrong=7)
    assert row.to_json()["wrong"] == 7


def test_a_prediction_is_off_by_its_sign() -> None:
    (row,) = rows(bench_spec(HIER), [[[20.0] * 3]], off=-0.25)
    assert row.to_json()["predicted_error_ratio"] == pytest.approx(-0.25)


def test_who_chooses_among_others_says_what_it_chose() -> None:
    (row,) = rows(bench_spec(HIER), [[[20.0] * 3]])
    assert row.name == "hierarchical"
    assert replace(row, goes_through="native").name == "hierarchical: native"
