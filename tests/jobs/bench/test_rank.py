"""A bench as its ranks see it: real ranks over loopback, their turns, bytes and sums."""

from pathlib import Path
from typing import Any

import pytest

from ddp.algorithms import find_algorithm, ring_schedule
from ddp.cost import payload_bytes
from ddp.fabric import Fabric
from ddp.fixed import LARGE_BYTES
from ddp.plan import choose_segments
from jobs.bench.asked import DTYPES, BenchSpec, Contender, contenders
from tests.jobs.bench.samples import HIER, MIXED, MIXED_NATIVE, NATIVE, RING
from tests.jobs.ranks import RunRanks, arguments, assert_finished, failures

NODES = (0, 0, 1, 1)
INTERLEAVED = (0, 1, 0, 1)
SIZES = (16, 1_000_004, 4 << 20)
WRONG = """
from ddp.algorithms import ring_schedule
from ddp.schedule import Schedule

def build(fabric, ring_order, ring_seed):
    ring = ring_schedule(range(fabric.num_ranks))
    stages = list(ring)
    return Schedule(ring.num_ranks, ring.num_chunks, ring.name, lambda: stages[:-1])
"""


def run(
    run_ranks: RunRanks,
    folder: Path,
    bench: BenchSpec,
    node_of: tuple[int, ...] = NODES,
    **more: Any,
) -> list[dict[str, Any]]:
    ranks = arguments(folder / "run", "hier", node_of=node_of)
    told = [{**each, **more} for each in ranks]
    return run_ranks([{"rank": each, "bench": bench.model_dump(mode="json")} for each in told])


def results(ended: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert_finished(ended)
    return [rank["events"][-1]["result"] for rank in ended]


@pytest.fixture(scope="module")
def bench() -> BenchSpec:
    who = (NATIVE, RING, HIER, MIXED_NATIVE, MIXED)
    return BenchSpec(sizes_bytes=SIZES, contenders=who, rounds=3, warmup_rounds=1)


@pytest.fixture(scope="module")
def ended(run_ranks: RunRanks, bench: BenchSpec, tmp_path_factory: Any) -> list[dict[str, Any]]:
    ended = run(run_ranks, tmp_path_factory.mktemp("bench"), bench)
    assert_finished(ended)
    return ended


def test_every_sum_of_every_contender_is_right(
    ended: list[dict[str, Any]], bench: BenchSpec
) -> None:
    for rank in results(ended):
        assert rank["wrong"] == [[0] * len(bench.contenders)] * len(SIZES)


def test_only_counted_rounds_have_a_time(ended: list[dict[str, Any]], bench: BenchSpec) -> None:
    for rank in results(ended):
        assert [[len(times) for times in row] for row in rank["seconds"]] == [[3] * 5] * 3
        assert all(second > 0 for row in rank["seconds"] for times in row for second in times)
        assert rank["memory"] == [[]] * 3, "links decide"
        assert bench.num_turns == 4 * 5 * 3


def test_each_node_sent_what_the_schedule_says(
    ended: list[dict[str, Any]], bench: BenchSpec
) -> None:
    found = results(ended)
    for number, who in enumerate(bench.contenders):
        fabric = Fabric(INTERLEAVED if who.placement == "interleaved" else NODES)
        build = find_algorithm(who.algorithm).build
        for size, num_bytes in enumerate(SIZES):
            counted = [rank["sent"][size][number] for rank in found]
            if build is None:
                assert counted == [None] * 4
                continue
            segments = choose_segments(who.algorithm, num_bytes, fabric.num_nodes)
            expected = payload_bytes(
                build(fabric, who.ring_order, 0), fabric, num_bytes // 4, 4, segments
            )
            by_node = [counted[0] + counted[1], counted[2] + counted[3]]
            assert by_node == [expected[0], expected[1]], (who, num_bytes)


def test_predictions_are_told_before_the_first_turn(ended: list[dict[str, Any]]) -> None:
    events = [each["kind"] for each in ended[0]["events"]]
    assert events.index("prediction") < events.index("phase", 2)
    assert "prediction" not in [each["kind"] for each in ended[1]["events"]]
    (told,) = [each["document"] for each in ended[0]["events"] if each["kind"] == "prediction"]
    assert set(told["calibration"]) == {"contiguous", "interleaved"}
    entries = told["entries"][SIZES.index(4 << 20)]
    assert [each["goes_through"] for each in entries] == [
        *("native", "ring", "hierarchical"),
        *("native", "hierarchical"),
    ]
    assert [each["sent_bytes"] / (4 << 20) for each in entries] == [1.5, 1.5, 1.0, 3.0, 1.0]
    # 10 MB/s in each direction, of which every node needs a whole buffer
    assert {each["limit_s"] for each in entries} == {(4 << 20) / 1e7}
    for each in entries:
        sent_s = each["sent_bytes"] / 1e7
        assert sent_s <= each["predicted_s"] < 1.5 * sent_s + 0.2


def test_native_takes_the_ring_of_its_placement(ended: list[dict[str, Any]]) -> None:
    """What its ring sends follows from where its ranks are: interleaved, all of it crosses."""
    (told,) = [each["document"] for each in ended[0]["events"] if each["kind"] == "prediction"]
    fabric = Fabric(INTERLEAVED)
    sent = payload_bytes(ring_schedule(range(4)), fabric, (4 << 20) // 4, 4, 2)
    assert told["entries"][2][3]["sent_bytes"] == max(sent.values())


def test_where_links_were_not_measured_nothing_is_predicted(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    bench = BenchSpec(sizes_bytes=(64,), contenders=(HIER,), rounds=1, warmup_rounds=0)
    ended = run(run_ranks, tmp_path, bench, links=None)
    assert_finished(ended)
    (told,) = [each["document"] for each in ended[0]["events"] if each["kind"] == "prediction"]
    assert told["links"] is None
    assert [told["entries"][0][0][key] for key in ("predicted_s", "limit_s")] == [None, None]


def test_on_one_node_memory_is_timed_in_every_round(run_ranks: RunRanks, tmp_path: Path) -> None:
    bench = BenchSpec(
        sizes_bytes=(4, LARGE_BYTES), contenders=(NATIVE, HIER), rounds=3, warmup_rounds=1
    )
    ended = run(run_ranks, tmp_path, bench, (0, 0, 0))
    for rank in results(ended):
        assert rank["wrong"] == [[0, 0]] * 2
        few, many = rank["memory"]
        assert (few, len(many)) == ([], 3), "few bytes are a matter of messages"
        assert all(start < end for start, end in many)
    (told,) = [each["document"] for each in ended[0]["events"] if each["kind"] == "prediction"]
    costs = told["calibration"]["contiguous"]["algorithms"]
    native, hier = told["entries"][1]
    assert native["limit_s"] is hier["limit_s"] is None  # of a wire: there is none
    cost = costs["hierarchical"]
    if cost["large_s"]:  # None on a machine that was too busy to time it
        assert hier["predicted_s"] == pytest.approx(cost["large_s"], rel=0.01)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(run_ranks: RunRanks, tmp_path: Path, dtype: str) -> None:
    who = (NATIVE, HIER)
    bench = BenchSpec(
        sizes_bytes=(16, 65_536), contenders=who, dtype=dtype, rounds=1, warmup_rounds=0
    )
    for rank in results(run(run_ranks, tmp_path, bench)):
        assert rank["wrong"] == [[0, 0], [0, 0]]


def test_a_wrong_sum_is_counted_on_every_rank_that_has_it(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """The last stage of a ring is left out: each rank lacks one chunk of four."""
    (tmp_path / "wrong.py").write_text(WRONG)
    (own,) = contenders([f"{tmp_path}/wrong.py:build"], ["contiguous"], ["contiguous"])
    bench = BenchSpec(sizes_bytes=(4000,), contenders=(NATIVE, own), rounds=2, warmup_rounds=1)
    for rank in results(run(run_ranks, tmp_path, bench)):
        right, wrong = rank["wrong"][0]
        assert right == 0
        assert 0.9 * 30 * 250 < wrong <= 30 * 250  # 10 in a row, in each of 3 rounds


def test_an_algorithm_that_cannot_be_built_is_told(run_ranks: RunRanks, tmp_path: Path) -> None:
    own = Contender(algorithm=f"{tmp_path}/gone.py:build")
    bench = BenchSpec(sizes_bytes=(64,), contenders=(own,), rounds=1, warmup_rounds=0)
    assert all("gone.py" in message for message in failures(run(run_ranks, tmp_path, bench)))
