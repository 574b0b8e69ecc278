"""Several jobs in one set of ranks, as the launcher sees them: real processes, stood-in jobs."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobSpecError, RunFailed, RunStopped
from jobs.progress import PhaseProgress
from jobs.rankplan import Program
from jobs.records import RankRecords
from jobs.rounds.launcher import TurnsResult, take_turns
from jobs.runfolder import RunFolder
from jobs.spec import JobSpec
from tests.jobs.test_launch import Notes, job

TURNS = Program("turns_stand_in:main", ("turns_stand_in",))


def take(
    lab: Any, runs: Path, *specs: JobSpec, notes: Notes | None = None, **how: Any
) -> TurnsResult:
    options = {"rounds": 2, "turn_steps": 3, "program": TURNS, **how}
    return take_turns(specs, lab, runs, notes or Notes(), **options)


def test_each_job_has_a_run_folder_of_its_own(make_lab: Any, tmp_path: Path) -> None:
    runs, notes = tmp_path / "runs", Notes()
    taken = take(make_lab(), runs, job("ring"), job("hier"), notes=notes)
    assert taken.error is None
    assert [each.summary["job"] for each in taken.results] == ["ring", "hier"]
    for each in taken.results:
        run = json.loads((each.folder.path / "run.json").read_text())
        assert run["turns"] == {"group": taken.group, "rounds": 2, "steps_per_turn": 3}
        assert run["job"]["train"]["steps"] == 6
        assert run["nodes"]["node1"]["congestion_control"] == "cubic"
        assert run["plan_sha256"] == "feed"
        assert each.summary["status"] == "ok"
        assert each.summary["steps"] == 6
        assert len((each.folder.path / "steps.csv").read_text().splitlines()) == 7
        assert (each.folder.path / "rank3.log").exists()
        assert not each.folder.is_running()
    names = [each.folder.run_id.split("-", 2)[2] for each in taken.results]
    assert names == ["compare-ring-2x2-200mbit", "compare-hier-2x2-200mbit"]
    assert notes.events == [*(f"begin {each.folder.run_id}" for each in taken.results), "end"]


def test_the_label_and_the_group_are_the_callers(make_lab: Any, tmp_path: Path) -> None:
    taken = take(make_lab(), tmp_path / "runs", job("ring"), label="scale", group="ours")
    (result,) = taken.results
    assert taken.group == "ours"
    assert result.run["turns"]["group"] == "ours"
    assert result.folder.run_id.split("-", 2)[2] == "scale-ring-2x2-200mbit"


def test_groups_of_the_same_minute_are_not_mixed_up(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    groups = {take(lab, tmp_path / "runs", job("ring")).group for _ in range(2)}
    assert len(groups) == 2


def test_progress_tells_which_job_it_is(make_lab: Any, tmp_path: Path) -> None:
    notes = Notes()
    take(make_lab(), tmp_path / "runs", job("ring"), job("hier"), notes=notes)
    trained = [(each.job, each.done) for each in notes.phases if each.phase == "train"]
    assert trained == [(number, done) for number in (0, 1) for done in range(1, 7)]


def test_one_job_that_fails_ends_all_with_its_cause(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    taken = take(lab, tmp_path / "runs", job("ring"), job("killed"))
    words = "rank 1 (node0) was killed by SIGKILL, after train step 1 of killed"
    assert isinstance(taken.error, RunFailed)
    assert taken.error.message == words
    for each, kept in zip(taken.results, (6, 1), strict=True):
        assert each.error is not None
        assert each.summary["status"] == "failed"
        assert each.summary["error"]["message"] == words
        assert each.summary["steps"] == kept
    assert all(process.poll() is not None for process in lab.nodes.processes)


class StopAt(Notes):
    """Sends Ctrl-C at a training step of the second job."""

    def progress(self, phase: PhaseProgress, ranks: list[RankRecords]) -> None:
        super().progress(phase, ranks)
        if (phase.job, phase.phase, phase.done) == (1, "train", 1):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stop_keeps_what_was_recorded_of_every_job(make_lab: Any, tmp_path: Path) -> None:
    taken = take(make_lab(), tmp_path / "runs", job("ring"), job("hang"), notes=StopAt())
    assert isinstance(taken.error, RunStopped)
    ring, hang = taken.results
    assert ring.error is not None
    assert ring.error.message == (
        f"stopped by you after the last step; 6 steps kept in runs/{ring.folder.run_id}; "
        "the lab is still up"
    )
    assert hang.summary["steps"] == 1
    assert hang.summary["error"]["kind"] == "stopped"


def test_jobs_that_put_ranks_elsewhere_cannot_share_them(make_lab: Any, tmp_path: Path) -> None:
    with pytest.raises(JobSpecError, match="placement interleaved") as caught:
        take(make_lab(), tmp_path / "runs", job("ring"), job("hier", placement="interleaved"))
    assert "placement=contiguous" in caught.value.fix[0]
    assert not (tmp_path / "runs").exists()


def test_all_run_folders_are_there_before_anything_starts(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    seen: list[tuple[int, bool]] = []

    class Early(Notes):
        def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
            super().begin(folder, run)
            running = [it for it in (tmp_path / "runs").iterdir() if RunFolder(it).is_running()]
            seen.append((len(running), bool(lab.nodes.processes)))

    take(lab, tmp_path / "runs", job("ring"), job("hier"), notes=Early())
    assert seen == [(3, False), (3, False)]  # runs/latest leads to one of the two
