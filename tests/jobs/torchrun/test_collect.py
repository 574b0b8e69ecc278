"""One run folder of the files of several machines; ranks that are missing or double are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobError, RecordsError
from jobs.records import records_path
from jobs.runfolder import RunFolder
from jobs.spec import load_job
from jobs.torchrun.describing import describe
from jobs.torchrun.facts import layout
from jobs.torchrun.folder import RankFolder, Session, write_part
from jobs.torchrun.gathering import collect
from tests.jobs.command import call, valid
from tests.jobs.run_folders import Ranks
from tests.jobs.torchrun.samples import four

PLAN = {"plan": {"long": "and not needed"}, "plan_sha256": "ab" * 32}
PROBE = {
    "schema": 1,
    "ok": True,
    "measured_at": 1.0,
    "links": [
        {
            "src": f"node{src}",
            "dst": f"node{1 - src}",
            "mode": "one_way",
            "configured_bits_per_second": None,
            "measured_bytes_per_second": 24e6 + src,
            "ceiling_bytes_per_second": None,
            "ratio": None,
            "round_trip_s": 1e-4,
        }
        for src in (0, 1)
    ],
}


def machines(home: Path, token: str = "t0", **header: Any) -> list[Path]:
    """The folders that two machines have kept of a run of three steps."""
    where = layout(four())
    session = Session("x", token, "2026-11-30T11:04:00.000+00:00")
    run = describe(load_job("hier"), where, session, "torchrun", threads_set=True)
    ranks = Ranks(RunFolder(home), 4)
    home.mkdir(parents=True)
    for rank in range(4):
        facts = {"run_id": "x", "rank": rank, "world_size": 4, "gradient_bytes": 3_470_000}
        probe = PROBE if rank == 0 else None
        anchor = {"wall_ns": 0, "monotonic_ns": 0, "probe": probe, "clock": None}
        line = {"kind": "header", **facts, **PLAN, **anchor, **header}
        ranks.text(rank, json.dumps(line) + "\n")
    for step in range(3):
        ranks.step(step)
    for rank in range(4):
        ranks.line(rank, "end", params_sha256="cd" * 32, steps=3, monotonic_ns=1)
    folders = []
    for node in (0, 1):
        folder = home / f"machine{node}"
        folder.mkdir()
        write_part(RankFolder(RunFolder(folder), session, False), node, where.ranks_on(node), run)
        for rank in where.ranks_on(node):
            records_path(home, rank).rename(records_path(folder, rank))
        folders.append(folder)
    (folders[0] / "prediction.json").write_text('{"step_seconds": 0.1, "comm_seconds": 0.01}')
    return folders


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("order", [1, -1])
def test_two_machines_make_a_whole_run(tmp_path: Path, order: int) -> None:
    folders = machines(tmp_path / "from")
    before = [files(folder) for folder in folders]
    result = collect(folders[::order], tmp_path / "runs" / "whole")
    assert result.error is None
    made = tmp_path / "runs" / "whole"
    assert {path.name for path in made.iterdir()} == {
        *(f"rank{rank}.jsonl" for rank in range(4)),
        *("run.json", "summary.json", "steps.csv", "prediction.json"),
    }
    run = json.loads((made / "run.json").read_text())
    summary = json.loads((made / "summary.json").read_text())
    assert run["run_id"] == summary["run_id"] == "whole", "a run's folder has its name"
    assert (run["plan_sha256"], run["node_of"]) == (PLAN["plan_sha256"], [0, 0, 1, 1])
    assert [link["measured_bytes_per_second"] for link in run["probe"]["links"]] == [24e6, 24e6 + 1]
    assert run["nodes"]["node1"]["host"] == "host1"
    assert (summary["backend"], summary["underlay"]) == ("torchrun", None)
    assert (summary["steps"], summary["status"], summary["ranks_agree"]) == (3, "ok", True)
    assert summary["predicted"]["step_seconds"] == 0.1
    assert summary["link"]["measured_bytes_per_second"] == 24e6
    assert [files(folder) for folder in folders] == before


def refusal(folders: list[Path], out: Path) -> str:
    with pytest.raises(RecordsError) as refused:
        collect(folders, out)
    assert refused.value.rule and refused.value.fix
    assert not out.exists() and not list(out.parent.glob(".new-*")), "nothing is left"
    return str(refused.value)


def test_what_is_missing_or_double_is_refused_by_number(tmp_path: Path) -> None:
    first, second = machines(tmp_path / "from")
    out = tmp_path / "whole"
    assert "ranks 2, 3 of 4 missing" in refusal([first], out)
    assert "ranks 0, 1 of 4 missing" in refusal([second], out)
    records_path(second, 3).unlink()
    assert "rank 3 of 4 missing" in refusal([first, second], out)
    shutil.copy(records_path(first, 1), records_path(second, 1))
    assert f"rank 1 is in {first} and in {second}" in refusal([first, second], out)
    assert f"rank 0 is in {first} and in {first}" in refusal([first, first], out)


def test_files_of_another_run_are_refused(tmp_path: Path) -> None:
    first, _ = machines(tmp_path / "a")
    _, second = machines(tmp_path / "b", token="t1")
    out = tmp_path / "whole"
    assert f"{second} is of another run than {first}" in refusal([first, second], out)
    first, _ = machines(tmp_path / "c")
    _, second = machines(tmp_path / "d", plan_sha256="ef" * 32)
    assert "rank 2 has plan efefefef, rank 0 has abababab" in refusal([first, second], out)
    first, second = machines(tmp_path / "e")
    records_path(second, 2).rename(second / "aside")
    records_path(second, 3).rename(records_path(second, 2))
    (second / "aside").rename(records_path(second, 3))
    assert "of rank 3 of 4; the file of rank 2" in refusal([first, second], out)


def test_what_is_no_machines_folder_is_refused(tmp_path: Path) -> None:
    first, second = machines(tmp_path / "from")
    out = tmp_path / "whole"
    assert "absent: not there" in refusal([first, tmp_path / "absent"], out)
    (tmp_path / "empty").mkdir()
    assert "empty: no part of a run" in refusal([first, tmp_path / "empty"], out)
    collect([first, second], out)
    again = tmp_path / "again"
    assert "whole: a whole run" in refusal([out], again)
    with pytest.raises(RecordsError, match="whole: there already"):
        collect([first, second], out)


def test_a_rank_that_did_not_end_makes_a_failed_run(tmp_path: Path) -> None:
    first, second = machines(tmp_path / "from")
    path = records_path(second, 3)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    result = collect([first, second], tmp_path / "whole")
    assert isinstance(result.error, JobError)
    assert result.summary["status"] == "failed"
    assert "rank 3 did not come to an end" in result.summary["error"]["message"]


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(folder) for folder in machines(tmp_path / "from")]
    code, out, _ = call(capsys, "collect", *folders, "--out", str(tmp_path / "whole"), "--json")
    assert code == 0
    assert valid(out, "run")["run_id"] == "whole"
    code, out, _ = call(capsys, "collect", *folders, "--out", str(tmp_path / "second"))
    assert code == 0 and "second, as --out says" in out
    assert "make run " not in out, "no lab is there to run it on"
    code, out, _ = call(capsys, "collect", folders[0], "--out", str(tmp_path / "c"), "--json")
    assert code == 1
    assert json.loads(out)["error"]["kind"] == "bad_records"
