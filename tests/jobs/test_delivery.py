"""Ranks that do not see the run folder: what they record is there all the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.site import Attached
from jobs.delivery import Delivery
from jobs.errors import RecordsError
from jobs.launch import launch
from jobs.runfolder import RunFolder
from tests.jobs.conftest import LocalNodes, cluster_spec
from tests.jobs.ranks import RunRanks, arguments, assert_finished, final_sums, records
from tests.jobs.test_launch import STAND_IN, Notes, job


class Apart(LocalNodes):
    """Nodes with files of their own."""

    @property
    def project(self) -> None:
        return None

    @property
    def shares_files(self) -> bool:
        return False


def attached(nodes: LocalNodes) -> Attached:
    spec = cluster_spec(2, 2, "unlimited")
    return Attached("10.0.0.1:6379", spec, "ray", nodes, 1_795_000_000.0, underlay=None)


def test_a_run_on_machines_of_others_leaves_the_same_folder(tmp_path: Path) -> None:
    nodes = Apart(2)
    result = launch(job("ok"), attached(nodes), tmp_path / "runs", Notes(), STAND_IN)
    assert result.error is None
    assert [len(rank.steps) for rank in result.ranks] == [6] * 4
    assert [len(rank.baseline) for rank in result.ranks] == [20] * 4
    told = [rank.header["argument"] for rank in result.ranks if rank.header]
    assert [each["run_dir"] for each in told] == [None] * 4
    assert {path.name for path in result.folder.path.iterdir()} == {
        *(f"rank{rank}.{kind}" for rank in range(4) for kind in ("jsonl", "log")),
        *("run.json", "summary.json", "steps.csv"),
    }
    assert (result.summary["backend"], result.summary["underlay"]) == ("ray", None)
    assert result.run["plan_sha256"] == "feed"
    assert nodes.asked == []  # neither our runs nor our checkout is looked for there


def test_a_rank_that_is_killed_leaves_what_it_had_sent(tmp_path: Path) -> None:
    result = launch(job("killed"), attached(Apart(2)), tmp_path / "runs", Notes(), STAND_IN)
    assert result.error is not None
    assert "rank 1 (node0) was killed by SIGKILL, after train step 2" in result.error.message
    assert len(result.ranks[1].steps) == 2


@pytest.fixture
def folders(tmp_path: Path) -> list[RunFolder]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return [RunFolder(tmp_path / name) for name in ("a", "b")]


def test_what_ranks_send_is_what_they_would_have_written(
    run_ranks: RunRanks, folders: list[RunFolder], tmp_path: Path
) -> None:
    assert_finished(run_ranks(arguments(tmp_path / "seen", "hier")))
    ranks = run_ranks([{**each, "run_dir": None} for each in arguments(tmp_path / "-", "hier")])
    assert_finished(ranks)
    with Delivery(folders[:1]) as delivery:
        for rank, ended in enumerate(ranks):
            for message in ended["events"]:
                delivery.take(rank, message)
    sent, seen = folders[0].path, tmp_path / "seen"
    assert final_sums(sent) == final_sums(seen)
    assert [len(rank.steps) for rank in records(sent)] == [4, 4]
    assert kinds(sent / "rank1.jsonl") == kinds(seen / "rank1.jsonl")
    predicted = [json.loads((each / "prediction.json").read_text()) for each in (sent, seen)]
    assert predicted[0].keys() == predicted[1].keys()
    assert predicted[0]["inputs"]["links"] == predicted[1]["inputs"]["links"]


def kinds(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def test_each_job_has_a_folder(folders: list[RunFolder]) -> None:
    def line(of: int) -> dict[str, Any]:
        return {"kind": "record", "job": of, "line": f'{{"of": {of}}}'}

    with Delivery(folders) as delivery:
        for number in (0, 1, 0):
            delivery.take(3, line(number))
        delivery.take(0, {"kind": "prediction", "job": 1, "document": {"step_seconds": 0.5}})
        delivery.take(0, {"kind": "phase", "phase": "train"})
    assert (folders[0].path / "rank3.jsonl").read_text() == '{"of": 0}\n{"of": 0}\n'
    assert (folders[1].path / "rank3.jsonl").read_text() == '{"of": 1}\n'
    assert folders[1].read("prediction.json") == {"step_seconds": 0.5}
    assert folders[0].read("prediction.json") is None


def test_records_that_are_there_are_never_added_to(folders: list[RunFolder]) -> None:
    (folders[0].path / "rank0.jsonl").write_text("of another run\n")
    with Delivery(folders) as delivery, pytest.raises(RecordsError, match=r"rank0\.jsonl.*exists"):
        delivery.take(0, {"kind": "record", "job": 0, "line": "{}"})
