"""Predictions without a lab: the notes' example to the digit, what is asked, what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import UnitError
from jobs.estimate.amounts import AmountError, parse_bytes, parse_parameters
from jobs.estimate.estimate import Asked, Estimate, estimates, rule_of_thumb
from jobs.estimate.source import figures
from jobs.report.predict_screen import predict_screen
from jobs.report.text import plain
from jobs.verbs import run_command

TYPED = {"bytes": "14GB", "rate": "25GB/s", "intra_rate": "900GB/s", "compute": "0.5s"}


def asked(**typed: Any) -> Asked:
    return figures({**TYPED, **typed}, False, None).asked


def example() -> Asked:
    return figures({}, True, None).asked


def rows(it: Asked) -> dict[str, Estimate]:
    return {row.algorithm: row for row in estimates(it)}


def test_the_rule_of_thumb_is_the_notes_example() -> None:
    it = example()
    assert it.gradient_bytes == 14_000_000_000
    inside, between = rule_of_thumb(it, 900e9), rule_of_thumb(it, 25e9)
    assert (inside.moved_bytes, between.moved_bytes) == (28_000_000_000, 28_000_000_000)
    assert inside.seconds == pytest.approx(0.031, abs=0.0005)
    assert between.seconds == pytest.approx(1.12)
    assert between.seconds / inside.seconds == pytest.approx(36)
    assert inside.efficiency_none_hidden == pytest.approx(0.94, abs=0.005)
    assert inside.efficiency_all_hidden == 1.0
    assert between.efficiency_none_hidden == pytest.approx(0.31, abs=0.005)
    assert between.efficiency_all_hidden == pytest.approx(0.45, abs=0.005)


def test_what_the_rule_leaves_out() -> None:
    found = rows(example())
    gradients = 14_000_000_000
    assert found["ring"].sent_bytes == pytest.approx(2 * 15 / 16 * gradients)
    assert found["ring, interleaved"].sent_bytes == pytest.approx(8 * 2 * 15 / 16 * gradients)
    for name in ("hierarchical", "hierarchical_leader", "halving_doubling"):
        assert found[name].sent_bytes == gradients  # 2(M-1)/M of them, for two nodes
    assert found["parameter_server"].sent_bytes == 8 * gradients
    # eight ranks share the inside of a node in parallel, one representative has its own link alone
    assert found["hierarchical"].inside_s == pytest.approx(14 * gradients / 8 / 900e9)
    assert found["hierarchical_leader"].inside_s == pytest.approx(14 * gradients / 900e9)
    assert found["hierarchical"].between_s == pytest.approx(0.56)
    assert found["hierarchical"].step_s < found["ring"].step_s < found["ring, interleaved"].step_s


def test_the_nic_that_is_needed_is_just_good_enough() -> None:
    it = example()
    row = rows(it)["hierarchical"]
    assert row.needed_bytes_per_s is not None
    for factor, good in ((1.01, True), (0.99, False)):
        rate = f"{row.needed_bytes_per_s * factor / 1e9:.3f}GB/s"
        better = rows(figures({"rate": rate}, True, None).asked)["hierarchical"]
        assert (better.efficiency >= 0.9) is good
    slow_inside = replace(it.cluster, rank_bytes_per_s=1e9)
    assert rows(replace(it, cluster=slow_inside))["hierarchical"].needed_bytes_per_s is None
    one = rows(asked(nodes=1))["ring"]
    assert (one.sent_bytes, one.needed_bytes_per_s) == (0, None)


def test_overlap_hides_what_it_can_and_no_more() -> None:
    comm_s = rows(asked())["hierarchical"].comm_s
    assert asked(overlap=0.0).step_s(comm_s) == pytest.approx(0.5 + comm_s)
    assert asked(overlap=0.5).step_s(comm_s) == pytest.approx(0.5 + comm_s - 0.25)
    assert asked(overlap=1.0).step_s(0.4) == 0.5


def test_a_cluster_that_an_algorithm_refuses_leaves_it_out() -> None:
    assert "halving_doubling" in rows(asked(nodes=4))
    assert "halving_doubling" not in rows(asked(nodes=3))


def test_a_run_gives_what_is_not_typed() -> None:
    run = {
        "run": {"nnodes": 4, "nproc_per_node": 2},
        "prediction": {
            "inputs": {
                "compute": {"step_s": 0.2, "bucket_bytes": [2_000_000, 1_000_000]},
                "links": [
                    {"out_bytes_per_s": 24e6, "in_bytes_per_s": 23e6},
                    {"out_bytes_per_s": 22e6, "in_bytes_per_s": None},
                ],
                "calibration": {
                    "alpha_inter_s": 0.001,
                    "alpha_intra_s": 0.0002,
                    "intra_bytes_per_s": 6e8,
                },
            }
        },
    }
    it = figures({}, False, run).asked
    assert (it.cluster.num_nodes, it.cluster.ranks_per_node) == (4, 2)
    assert (it.gradient_bytes, it.compute_s) == (3_000_000, 0.2)
    assert (it.cluster.links.nic_out.bytes_per_s, it.cluster.links.nic_in.alpha_s) == (22e6, 0.001)
    assert (it.cluster.links.intra.bytes_per_s, it.cluster.links.intra.alpha_s) == (6e8, 0.0002)
    assert it.cluster.rank_bytes_per_s is None
    other = figures({"nodes": 8, "rate": "1gbit", "bytes": "1GB"}, False, run).asked
    assert (other.cluster.num_nodes, other.cluster.ranks_per_node) == (8, 2)
    assert other.cluster.links.nic_out.bytes_per_s == 125e6
    assert (other.gradient_bytes, other.compute_s) == (1_000_000_000, 0.2)
    assert it.buckets is other.buckets is None, "an older run does not tell when they were ready"


def run_of_buckets(overlap: bool) -> dict[str, Any]:
    """Two buckets, ready 20 and 100 ms into a backward of 100; a step of 150 ms."""
    compute = {
        "step_s": 0.15,
        "backward_s": 0.1,
        "bucket_bytes": [2_000_000, 1_000_000],
        "ready_s": [0.02, 0.1],
        "num_reductions": 1,
    }
    links = [{"out_bytes_per_s": 20e6, "in_bytes_per_s": 20e6}]
    inputs = {"compute": compute, "links": links, "calibration": {"intra_bytes_per_s": 1e15}}
    job = {"ddp": {"overlap": overlap}}
    run = {"nnodes": 2, "nproc_per_node": 1, "job": job}
    return {"run": run, "prediction": {"inputs": inputs}}


@pytest.mark.parametrize(
    ("typed", "overlap", "step_s"),
    [
        # 100 ms of the first bucket from 20 on, 50 of the second: 70 beyond backward
        ({}, True, 0.15 + 0.07),
        ({}, False, 0.15 + 0.15),
        # twice as fast: 50 from 20 on; the second 25 when backward has ended
        ({"rate": "40MB/s"}, True, 0.15 + 0.025),
        # computing takes twice as long, so that buckets are ready later
        ({"compute": "300ms"}, True, 0.3 + 0.05),
        # what is typed goes before: a share of computing hides it
        ({"overlap": 0.5}, True, 0.15 + 0.15 - 0.075),
        ({"bytes": "3MB"}, True, 0.15 + 0.15 - 0.1),
    ],
)
def test_the_buckets_of_a_run_say_what_hides(
    typed: dict[str, Any], overlap: bool, step_s: float
) -> None:
    it = figures(typed, False, run_of_buckets(overlap)).asked
    found = rows(it)["hierarchical"]
    assert found.step_s == pytest.approx(step_s, rel=1e-6)
    assert found.efficiency == pytest.approx(it.compute_s / step_s, rel=1e-6)
    thumbs = dict.fromkeys(("intra_node", "inter_node"), rule_of_thumb(it, 1e9))
    words = " ".join(plain(predict_screen(it, thumbs, [found], 100)).split())
    assert ("2 buckets are ready 20.0 ms to 100 ms into a backward of 100 ms" in words) == (
        not typed.keys() - {"rate"} and overlap
    )
    assert ("2 buckets are reduced after a backward of 100 ms" in words) == (not overlap)


@pytest.mark.parametrize(
    ("limits", "typed", "ratio"),
    [
        ((200_000_000, 160_000_000), {"rate": "1gbit"}, 0.95),  # 152 of 160 Mbit/s, the least
        ((200_000_000, None), {"rate": "1gbit"}, 0.96),
        ((None, None), {"rate": "1gbit"}, None),
        ((200_000_000, 160_000_000), {}, None),
    ],
)
def test_what_a_limit_let_through_is_said_beside_another_rate(
    limits: tuple[int | None, int | None], typed: dict[str, Any], ratio: float | None
) -> None:
    run = run_of_buckets(overlap=True)
    run["run"]["lab"] = {"nodes": [{"rate_bits_per_s": limit} for limit in limits]}
    run["prediction"]["inputs"]["links"] = [
        {"out_bytes_per_s": 24e6, "in_bytes_per_s": 24.1e6},
        {"out_bytes_per_s": 19.2e6, "in_bytes_per_s": 19e6},
    ]
    it = figures(typed, False, run).asked
    assert it.carried_ratio == (None if ratio is None else pytest.approx(ratio))
    thumbs = dict.fromkeys(("intra_node", "inter_node"), rule_of_thumb(it, 1e9))
    words = " ".join(plain(predict_screen(it, thumbs, list(estimates(it)), 80)).split())
    shown = f"RATE what a NIC carries: of the limit that the run's lab had, {ratio or 0:.1%}"
    assert (shown.replace("%", " %") in words) == (ratio is not None)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_parameters, "7b", 7_000_000_000),
        (parse_parameters, "1.3B", 1_300_000_000),
        (parse_parameters, "350m", 350_000_000),
        (parse_parameters, "900", 900),
        (parse_bytes, "14GB", 14_000_000_000),
        (parse_bytes, "14GiB", 14 * 2**30),
        (parse_bytes, "2.5 MB", 2_500_000),
        (parse_bytes, "16B", 16),
    ],
)
def test_amounts(read: Callable[[str], int], text: str, value: int) -> None:
    assert read(text) == value


@pytest.mark.parametrize("text", ["", "b", "-7b", "7t", "0", "1e9", "7bb", "9" * 30 + "b"])
def test_what_is_no_number_of_parameters(text: str) -> None:
    with pytest.raises(AmountError, match="is no number of parameters"):
        parse_parameters(text)


@pytest.mark.parametrize("text", ["", "14", "14G", "14gb", "-1GB", "0B", "1PB", "99999TB"])
def test_what_is_no_amount_of_gradients(text: str) -> None:
    with pytest.raises(AmountError, match="is no amount of gradients"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"nodes": 0}, "NODES=0"),
        ({"ranks_per_node": -1}, "RANKS_PER_NODE=-1"),
        ({"nics": 65}, "NICS=65"),
        ({"nodes": 1_000_001}, "NODES=1000001"),
        ({"overlap": 1.5}, "OVERLAP=1.5"),
        ({"overlap": float("nan")}, "OVERLAP=nan"),
        ({"compute": "0s"}, "COMPUTE=0s"),
        ({"parameters": "7b"}, "BYTES=14GB and PARAMETERS=7b"),
        ({"bytes": None, "parameters": "7b", "dtype": "int4"}, "DTYPE=int4"),
        ({"bytes": None}, "how much is reduced is not said"),
        ({"rate": None}, "RATE is not said"),
        ({"intra_rate": None}, "INTRA_RATE is not said"),
        ({"compute": None}, "how long a step computes is not said"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(typed: dict[str, Any], words: str) -> None:
    with pytest.raises(AmountError, match=words) as caught:
        asked(**typed)
    assert caught.value.fix


def test_rates_are_read_as_everywhere_but_may_be_any() -> None:
    assert asked(rate="400gbit").cluster.links.nic_out.bytes_per_s == 50e9
    with pytest.raises(UnitError, match="bits or bytes"):
        asked(rate="25gbps")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_screen_says_it_all_at_every_width(width: int) -> None:
    it = example()
    thumbs = {"intra_node": rule_of_thumb(it, 900e9), "inter_node": rule_of_thumb(it, 25e9)}
    text = plain(predict_screen(it, thumbs, list(estimates(it)), width))
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert "14.0 GB of gradients on every rank, reduced once a step; 2 nodes x 8 ranks." in words
    assert "inside a node 31.1 ms: 94 % efficiency with nothing hidden, 100 % with" in words
    assert "between nodes 1.12 s: 31 % efficiency with nothing hidden, 45 % with" in words
    assert "between nodes it takes 36.0 times as long" in words
    assert "sharded training (ZeRO, FSDP) moves other bytes" in words
    assert "Communication is the bottleneck." in words


def test_the_verb_answers_for_65_536_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = ["--nodes=8192", "--ranks-per-node=8", "--nics=8"]
    assert run_command(["predict", "--example", *shape, "--latency=20us", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["asked"]["cluster"]["num_nodes"] == 8192
    assert document["rule_of_thumb"]["inter_node"]["seconds"] == pytest.approx(1.12)
    found = {row["algorithm"]: row for row in document["algorithms"]}
    assert found["hierarchical"]["sent_bytes"] == pytest.approx(2 * 8191 / 8192 * 14e9)
    # 131,070 stages of 20 microseconds, which the bytes of other segments hide in part
    assert found["ring"]["comm_s"] > 131_070 * 20e-6
    assert run_command(["predict", "--calibrate=latest"]) == 1
    assert "no run of this folder's runs/" in capsys.readouterr().err
