"""What may differ between things that are compared, and what may not."""

from typing import Any

import pytest

from jobs.compare.rules import job_differences, require_same, run_differences
from jobs.errors import CompareError
from jobs.spec import load_job
from tests.jobs.compare_samples import compared, run_of

STEPS = ((100, 104), (102, 102))


def jobs(*sets: str) -> Any:
    """ring as it is, and hier with these settings."""
    return [
        ("ring", load_job("ring").model_dump(mode="json")),
        ("hier", load_job("hier", sets).model_dump(mode="json")),
    ]


@pytest.mark.parametrize(
    "setting",
    ["ddp.bucket_cap_mb=2", "ddp.overlap=false", "ddp.per_parameter=true", "baseline_steps=30"],
)
def test_ways_to_reduce_gradients_may_differ(setting: str) -> None:
    assert job_differences(jobs(setting)) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.width=64", "model.width: 128 in ring, 64 in hier"),
        ("data.batch_size=4", "data.batch_size: 8 in ring, 4 in hier"),
        ("train.seed=1", "train.seed: 0 in ring, 1 in hier"),
        ("train.accumulate=2", "train.accumulate: 1 in ring, 2 in hier"),
        ("train.lr=0.01", "train.lr: 0.001 in ring, 0.01 in hier"),
        ("data.path=/a/text", "data.path: null in ring, /a/text in hier"),
        ("pace.forward_ms=5", "pace.forward_ms: 60.0 in ring, 5.0 in hier"),
        ("placement=interleaved", "placement: contiguous in ring, interleaved in hier"),
        ("train.steps=31", "train.steps: 30 in ring, 31 in hier"),
    ],
)
def test_what_is_trained_may_not_differ(setting: str, words: str) -> None:
    assert job_differences(jobs(setting)) == [words]


def test_all_differences_are_told_at_once() -> None:
    found = job_differences(jobs("train.seed=1", "pace=null"))
    with pytest.raises(CompareError, match="ring, hier: not the same training") as caught:
        require_same(found, ["ring", "hier"])
    assert caught.value.seen is not None
    assert "train.seed: 0 in ring, 1 in hier" in caught.value.seen
    assert "pace" in caught.value.seen
    assert "ALLOW_DIFFERENT=1" in caught.value.fix[1]
    require_same([], ["ring", "hier"])


def changed_run(**changes: Any) -> list[str]:
    runs = [compared("ring", *STEPS), compared("hier", *STEPS, run=changes)]
    return run_differences(runs)


def test_runs_of_the_same_lab_may_have_different_lengths() -> None:
    runs = [compared("ring", *STEPS), compared("hier", *STEPS, *STEPS)]
    assert run_differences(runs) == []


def test_a_file_may_have_another_name_for_the_same_cluster() -> None:
    lab = run_of("hier", "hier")["lab"]
    inter = {"inter_node": {"rate": "25MB/s", "mtu": 1500}}
    cluster = {"name": "mine", "nodes": 2, "ranks_per_node": 2, "links": inter}
    assert changed_run(lab={**lab, "cluster": cluster}) == []


def test_another_rate_is_another_lab() -> None:
    lab = run_of("hier", "hier")["lab"]
    own = {"node1": {"inter_node": {"rate": "50mbit"}}}
    (found,) = changed_run(lab={**lab, "cluster": {**lab["cluster"], "overrides": own}})
    assert found == "lab.node1.inter_node.rate: 200mbit in ring, 50mbit in hier"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threads": {"per_rank": 2}}, "threads per rank: 1 in ring, 2 in hier"),
        ({"host": {"cpu": "another", "cores": 8}}, "machine: a machine in ring, another in hier"),
        ({"versions": {"torch": "2.6"}}, "torch: 2.13 in ring, 2.6 in hier"),
        ({"model_file": {"sha256": "beef"}}, "model file, SHA-256: null in ring, beef in hier"),
    ],
)
def test_runs_of_other_places_differ(changes: dict[str, Any], words: str) -> None:
    assert words in changed_run(**changes)


def test_a_model_file_that_was_changed_is_another_training() -> None:
    files = [{"path": "/a/my.py", "sha256": sha256} for sha256 in ("aaaa", "aaaa", "bbbb")]
    first, same, other = (compared("ring", *STEPS, run={"model_file": file}) for file in files)
    assert run_differences([first, same]) == []
    (found,) = run_differences([first, other])
    assert found == "model file, SHA-256: aaaa in ring, bbbb in ring"


def test_links_that_were_changed_meanwhile_are_told() -> None:
    entry = {"t_ns": 0, "settled_ns": 0, "node": "node1", "direction": "out"}
    change = {**entry, "configured_bits_per_second": 50_000_000}
    assert changed_run(link_changes=[change]) == ["links: changed while hier went on"]


def test_what_a_text_holds_counts_not_where_it_lies() -> None:
    same = [compared("ring", *STEPS), compared("hier", *STEPS, sets=("data.path=/moved",))]
    assert run_differences(same) == []
    assert same[1].ranks[0].header is not None
    same[1].ranks[0].header["data"]["sha256"] = "0ther"
    assert run_differences(same) == ["data, SHA-256: da7a in ring, 0ther in hier"]
