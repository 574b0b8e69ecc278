"""Run folders: names, locks, runs/latest, and what cleaning must never touch."""

import errno
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.errors import RecordsError
from jobs.runfolder import (
    RunFolder,
    clean_runs,
    create_run,
    list_runs,
    new_folder,
    replace_file,
    run_name,
)

NOON = datetime(2026, 11, 30, 11, 4, tzinfo=UTC)


def make(runs: Path, name: str, created_at: str = "2026-11-30T11:04:00") -> RunFolder:
    with create_run(runs, name, lambda run_id: {"run_id": run_id, "created_at": created_at}) as run:
        return run


def names(folders: list[RunFolder]) -> list[str]:
    return [folder.run_id for folder in folders]


def test_the_name_tells_when_what_and_where() -> None:
    assert run_name("hier", "2x2", "200mbit", NOON) == "20261130-1104-hier-2x2-200mbit"
    assert run_name("a/../b", "2x2", "1 gbit", NOON) == "20261130-1104-a-..-b-2x2-1-gbit"


def test_runs_of_the_same_minute_do_not_collide(tmp_path: Path) -> None:
    assert names([make(tmp_path, "run") for _ in range(3)]) == ["run", "run-2", "run-3"]
    assert (tmp_path / "latest").readlink() == Path("run-3")


def full_disk(_run_id: str) -> dict[str, str]:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_that_cannot_be_finished_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="No space left") as caught:
        create_run(tmp_path / "runs", "run", full_disk).__enter__()
    assert "runs-clean" in caught.value.fix[0]
    assert list((tmp_path / "runs").iterdir()) == []
    (tmp_path / "runs" / "latest").mkdir()
    with pytest.raises(RecordsError, match="not a link"):
        make(tmp_path / "runs", "run")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["latest"]


def test_a_file_in_the_place_of_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RecordsError, match="not a folder"):
        make(tmp_path / "runs", "run")


def test_a_run_is_running_exactly_while_its_launcher_holds_it(tmp_path: Path) -> None:
    with create_run(tmp_path, "run", lambda run_id: {"run_id": run_id}) as run:
        assert RunFolder(run.path).is_running()
    assert not run.is_running()


def test_a_killed_launcher_leaves_no_running_run(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from jobs.runfolder import create_run\n"
        "with create_run(Path(sys.argv[1]), 'run', lambda run_id: {'run_id': run_id}):\n"
        "    print('made', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        assert RunFolder(tmp_path / "run").is_running()
        assert clean_runs(tmp_path, keep=0) == []
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 5
    while RunFolder(tmp_path / "run").is_running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert names(clean_runs(tmp_path, keep=0)) == ["run"]


MAKE = """
import os, signal, sys; from pathlib import Path; import jobs.runfolder as ours
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
setattr(ours, sys.argv[2], die)
with ours.create_run(Path(sys.argv[1]), "run", lambda run_id: {"run_id": run_id}): pass
"""
CLEAN = """
import os, shutil, signal, sys; from pathlib import Path; import jobs.runfolder as ours
shutil.rmtree = lambda path: (next(path.glob("run.json")).unlink(), os.kill(os.getpid(), 9))
ours.clean_runs(Path(sys.argv[1]), 0)
"""


@pytest.mark.parametrize("script", ["_aside", "replace_file", "_renamed", "point_latest", "clean"])
def test_who_is_killed_leaves_a_whole_run_or_none_and_later_nothing(
    tmp_path: Path, script: str
) -> None:
    if script == "clean":
        make(tmp_path, "run")
    code = CLEAN if script == "clean" else MAKE
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), script], cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -9
    whole = names(list_runs(tmp_path))
    assert whole == (["run"] if script == "point_latest" else [])
    visible = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert visible == (["latest"] if script == "clean" else whole)
    for aside in tmp_path.glob(".new-*"):
        os.utime(aside, (0, 0))
    assert names(clean_runs(tmp_path, keep=0)) == whole
    assert list(tmp_path.iterdir()) == []


def test_what_others_are_making_is_left_to_them(tmp_path: Path) -> None:
    with create_run(tmp_path, "run", lambda run_id: {"run_id": run_id}) as run:
        aside = run.path.rename(tmp_path / ".new-1-abcd")
        os.utime(aside, (0, 0))
        make(tmp_path, "other")
        assert aside.is_dir()  # somebody holds it
        aside.rename(run.path)
    (tmp_path / ".new-2-abcd").mkdir()
    make(tmp_path, "third")
    assert (tmp_path / ".new-2-abcd").is_dir()  # it is younger than a minute


def test_cleaning_keeps_the_last_runs_by_time_not_by_name(tmp_path: Path) -> None:
    make(tmp_path, "z", "2026-11-30T11:00:00")
    make(tmp_path, "a", "2026-11-30T12:00:00")
    make(tmp_path, "m", "2026-11-30T11:30:00")
    assert names(list_runs(tmp_path)) == ["z", "m", "a"]
    assert names(clean_runs(tmp_path, keep=1)) == ["z", "m"]
    assert names(list_runs(tmp_path)) == ["a"]
    assert (tmp_path / "latest").readlink() == Path("a")


def test_cleaning_everything_removes_latest(tmp_path: Path) -> None:
    make(tmp_path, "run")
    assert names(clean_runs(tmp_path, keep=0)) == ["run"]
    assert list(tmp_path.iterdir()) == []


def test_cleaning_more_than_there_are_removes_nothing(tmp_path: Path) -> None:
    make(tmp_path, "run")
    assert clean_runs(tmp_path, keep=5) == []
    assert names(list_runs(tmp_path)) == ["run"]


def test_cleaning_never_touches_what_is_not_a_run(tmp_path: Path) -> None:
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    make(outside, "precious")
    (outside / "precious/run.json").write_text('{"run_id": "linked"}')
    make(runs, "run")
    (runs / "notes").mkdir()
    (runs / "notes/todo.txt").write_text("mine")
    (runs / "copy").mkdir()
    (runs / "copy/run.json").write_text(json.dumps({"run_id": "another"}))
    (runs / "broken").mkdir()
    (runs / "broken/run.json").write_text("{")
    (runs / "linked").symlink_to(outside / "precious")
    (runs / "file").write_text("")
    assert names(clean_runs(runs, keep=0)) == ["run"]
    assert sorted(path.name for path in runs.iterdir()) == [
        "broken",
        "copy",
        "file",
        "linked",
        "notes",
    ]
    assert (runs / "notes/todo.txt").read_text() == "mine"
    assert (outside / "precious/run.json").exists()


def test_a_negative_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="KEEP=-1"):
        clean_runs(tmp_path, keep=-1)


def test_something_else_called_latest_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(RecordsError, match="not a link"):
        make(tmp_path, "run")
    assert (tmp_path / "latest").is_dir()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    run = make(tmp_path, "run")
    run.write("summary.json", {"steps": 1})

    def torn(path: Path) -> None:
        path.write_text("{")
        raise OSError(28, "No space left on device")

    with pytest.raises(RecordsError, match="No space left"):
        replace_file(run.path / "summary.json", torn)
    assert run.read("summary.json") == {"steps": 1}
    assert sorted(path.name for path in run.path.iterdir()) == ["run.json", "summary.json"]


def test_figures_that_json_cannot_hold_are_not_written(tmp_path: Path) -> None:
    run = make(tmp_path, "run")
    with pytest.raises(ValueError, match="JSON"):
        run.write("summary.json", {"loss": float("nan")})
    assert run.read("summary.json") is None


def test_a_place_that_cannot_hold_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RecordsError, match="runs"):
        make(tmp_path / "runs", "run")


def test_no_folder_means_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "runs") == []
    assert clean_runs(tmp_path / "runs", keep=3) == []


def test_a_folder_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="broken"), new_folder(tmp_path / "x") as folder:
        (folder.path / "rank0.jsonl").write_text("half")
        raise RecordsError("broken")
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "x") as folder:
        (folder.path / "rank0.jsonl").write_text("whole")
        assert not (tmp_path / "x").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    with pytest.raises(RecordsError, match="there already"), new_folder(tmp_path / "x"):
        pass
    assert (tmp_path / "x" / "rank0.jsonl").read_text() == "whole"
