"""The bottleneck and the checks, in words, for hand-made runs."""

from dataclasses import replace
from typing import Any

from jobs.figures import run_figures
from jobs.records import RankRecords
from jobs.summary import summarize
from jobs.verdict import bottleneck, checks, slowest_link
from tests.jobs.samples import NODES, alike, bucket, figures_of, ranks_of, record, run_json


def test_the_slowest_link_and_whose_it_is() -> None:
    link = slowest_link(run_json())
    assert (link["node"], link["direction"], link["proof"]) == ("node1", "out", "probed")
    assert link["measured_bytes_per_second"] == 20.0e6
    slow_receiver = run_json()
    slow_receiver["lab"]["nodes"][0]["rate_bits_per_s"] = 50_000_000
    link = slowest_link(slow_receiver)
    assert (link["node"], link["direction"]) == ("node0", "in")


def test_the_link_is_the_bottleneck_where_most_waiting_is_for_it() -> None:
    # 1 MB a step at 20 MB/s is 50 ms of 100
    text = bottleneck(alike(), run_json())
    assert text == (
        "the link between nodes. It adds 15 ms to every step and carries data 50 % of the time."
    )


def test_a_slower_rank_is_the_bottleneck_where_others_wait_for_it() -> None:
    early = record(exposed=((60, 95),), buckets=[bucket(0, 60, 60, 95)])
    late = record(exposed=((85, 95),), backward=75, buckets=[bucket(0, 85, 85, 95)])
    text = bottleneck(figures_of(early, early, early, late), run_json())
    assert text is not None
    assert text.startswith("a slower rank. The others wait 19 ms")
    assert "rank 3 (node1)" in text


def test_computing_is_the_bottleneck_where_waits_are_small() -> None:
    figures = alike(exposed=((91, 95),), backward=61, buckets=[bucket(0, 70, 70, 95)])
    text = bottleneck(figures, run_json())
    assert text == (
        "computing. Waiting for other ranks takes 4 % of a step: a faster network saves at most "
        "4.0 ms."
    )


def test_data_and_the_unexplained_can_be_the_bottleneck() -> None:
    loading = bottleneck(alike(data=40, forward=10, backward=30), run_json())
    assert loading == "loading data. It takes 40 ms of every step."
    unexplained = bottleneck(alike(forward=10, backward=30), run_json())
    assert (unexplained or "").startswith("none of the phases. 40 ms")


def words(ranks: list[RankRecords], **changes: Any) -> list[tuple[bool, str]]:
    run = run_json(**changes)
    summary = summarize(run, ranks, None, None)
    results = checks(run_figures(ranks, NODES), run, summary)
    return [(check.good, check.text) for check in results]


def test_checks_of_a_good_run() -> None:
    assert words(ranks_of([[record()]] * 4)) == [
        (True, "parameters equal on 4 of 4 ranks (abababab)"),
        (True, "time adds up (rest 0.0 %)"),
        (True, "link proven"),
    ]


def test_checks_of_a_bad_run() -> None:
    broken = replace(record(), other_s=-0.02)
    ranks = ranks_of([[broken]] * 4, sums=("aa" * 32, "bb" * 32, "aa" * 32, "aa" * 32))
    ranks[2].end = {**(ranks[2].end or {}), "nic_tx_bytes": 100_000}
    assert words(ranks) == [
        (False, "parameters DIFFER between ranks"),
        (False, "time does NOT add up: 20 ms off in one step"),
        (False, "link NOT proven: its counters miss bytes that were sent"),
    ]
    assert words(ranks_of([[record()]] * 4), probe=None)[2] == (
        False,
        "link NOT proven: it was not measured",
    )


def test_a_backend_that_limits_nothing_says_so() -> None:
    run = run_json()
    on_ray = {**run["lab"], "backend": "ray"}
    assert words(ranks_of([[record()]] * 4), lab=on_ray)[2] == (
        True,
        "links measured; nothing is limited by this backend",
    )


def test_divergence_is_good_where_it_is_expected() -> None:
    ranks = ranks_of([[record()]] * 4, sums=("aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32))
    job = {**run_json()["job"], "expects_divergence": True}
    assert words(ranks, job=job)[0] == (
        True,
        "parameters differ between ranks, as this job expects",
    )
