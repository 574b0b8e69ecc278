"""Which runs the exporter shows, and how closely."""

import json
import shutil
from pathlib import Path

import pytest

from jobs.server.store import MAX_ENDED_RUNS, Snapshot, Store
from tests.jobs.looking import LATER, at_step, look, states, steps_of, view
from tests.jobs.run_folders import conclude, ended, going_on


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_no_folder_no_runs(runs: Path) -> None:
    assert look(Store(runs)) == Snapshot([], ())
    runs.write_text("a file in its place")
    assert [each.reason for each in look(Store(runs)).left_out] == ["Not a directory"]


def test_states_from_the_newest_to_the_oldest(runs: Path) -> None:
    ended(runs, "good", created_at="2026-11-30T09:00:00")
    failed = ended(runs, "failed", created_at="2026-11-30T10:00:00")
    conclude(failed, status="failed")
    with at_step(runs, 2, "killed"):
        pass
    with going_on(runs, "live", created_at="2026-11-30T11:00:00"):
        assert list(states(look(Store(runs))).items()) == [
            ("killed", "killed"),
            ("live", "running"),
            ("failed", "failed"),
            ("good", "ok"),
        ]


def test_a_running_run_grows_and_is_read_line_by_line(runs: Path) -> None:
    store = Store(runs)
    with going_on(runs, "live") as ranks:
        assert (view(store, "live").state, steps_of(view(store, "live"))) == ("running", 0)
        ranks.headers()
        ranks.step(0)
        assert steps_of(view(store, "live")) == 1
        for rank in (0, 1, 2):
            ranks.step(1, rank)
        assert steps_of(view(store, "live")) == 1  # rank 3 has not done it
        assert [rank.last_step for rank in view(store, "live").ranks] == [2, 2, 2, 1]
        ranks.step(1, 3)
        assert steps_of(view(store, "live")) == 2
        ranks.text(0, '{"kind":"step","step":2,"t_ns"')
        assert steps_of(view(store, "live")) == 2
        assert look(store).left_out == ()


def test_a_half_written_line_counts_when_it_is_whole(runs: Path) -> None:
    store = Store(runs)
    with going_on(runs, "live", num_ranks=2) as ranks:
        ranks.headers()
        ranks.step(0, 1)
        line = (ranks.folder.path / "rank1.jsonl").read_text().splitlines()[-1]
        for part, steps in ((line[:40], 0), (line[40:], 0), ("\n", 1)):
            ranks.text(0, part)
            assert steps_of(view(store, "live")) == steps


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_what_has_not_changed_is_not_read_again(runs: Path) -> None:
    for number in range(5):
        ended(runs, f"old{number}", created_at=f"2026-11-30T09:0{number}:00")
    with at_step(runs, 3) as ranks:
        ranks.text(0, '{"kind":"half')
        store = Store(runs)
        look(store)
        of_counting = -(bytes_read() - bytes_read())
        before = bytes_read()
        look(store)
        assert bytes_read() - before == of_counting
        ranks.step(3, 1)
        grown = (ranks.folder.path / "rank1.jsonl").read_text().splitlines()[-1]
        before = bytes_read()
        look(store)
        assert bytes_read() - before == of_counting + len(grown) + 1


def test_only_running_runs_and_the_last_one_are_read_closely(runs: Path) -> None:
    ended(runs, "first", created_at="2026-11-30T09:00:00")
    ended(runs, "last", created_at="2026-11-30T10:00:00")
    store = Store(runs)
    assert [(run.run_id, steps_of(run)) for run in look(store).runs] == [
        ("last", 3),
        ("first", None),
    ]
    with at_step(runs, 1):
        assert [steps_of(run) for run in look(store).runs] == [1, 3, None]
    conclude_as_failed(runs / "live")
    assert [steps_of(run) for run in look(store).runs] == [1, None, None]
    assert view(store, "first").summary is not None


def conclude_as_failed(path: Path) -> None:
    (path / "summary.json").write_text(json.dumps({"status": "failed", "steps": 1}))


def test_runs_that_took_turns_are_the_last_one_together(runs: Path) -> None:
    ended(runs, "before", created_at="2026-11-30T10:00:00")
    for number, job in enumerate(("ring", "hier")):
        ended(runs, job, created_at=f"2026-11-30T11:0{number}:00", turns={"group": "compare"})
    assert {run.run_id: steps_of(run) for run in look(Store(runs)).runs} == {
        "hier": 3,
        "ring": 3,
        "before": None,
    }


def test_ranks_of_a_killed_run_go_and_what_the_run_came_to_stays(runs: Path) -> None:
    store = Store(runs)
    with at_step(runs, 5) as ranks:
        ranks.end(0)
        assert len(view(store, "live").ranks) == 4
    left = view(store, "live")
    assert left.state == "killed"
    assert [rank.rank for rank in left.ranks] == [0]  # it had come to its end
    assert steps_of(left) == 5
    assert (left.summary or {})["steps"] == 5


def test_a_run_that_ended_keeps_all_its_ranks(runs: Path) -> None:
    ended(runs, "run")
    assert [rank.rank for rank in view(Store(runs), "run").ranks] == [0, 1, 2, 3]


def test_a_run_with_fewer_ranks_leaves_none_of_the_one_before(runs: Path) -> None:
    ended(runs, "four", created_at="2026-11-30T10:00:00")
    store = Store(runs)
    look(store)
    ended(runs, "two", num_ranks=2, created_at="2026-11-30T11:00:00")
    ranks = [(run.run_id, rank.rank) for run in look(store).runs for rank in run.ranks]
    assert ranks == [("two", 0), ("two", 1)]


def test_so_many_ended_runs_are_shown_and_no_more(runs: Path) -> None:
    for number in range(MAX_ENDED_RUNS + 3):
        created_at = f"2026-11-30T10:00:{number:02}"
        ended(runs, f"run{number}", 1, 1, num_nodes=1, created_at=created_at)
    shown = [run.run_id for run in look(Store(runs)).runs]
    assert shown == [f"run{number}" for number in range(MAX_ENDED_RUNS + 2, 2, -1)]


def test_deleted_folders_go_and_one_of_the_same_name_begins_anew(runs: Path) -> None:
    store = Store(runs)
    folder = ended(runs, "run")
    assert steps_of(view(store, "run")) == 3
    shutil.rmtree(folder.path)
    assert look(store).runs == []
    ended(runs, "run", steps=1, created_at=LATER)
    assert steps_of(view(store, "run")) == 1
    shutil.rmtree(runs)
    assert look(store) == Snapshot([], ())


def test_a_folder_that_was_moved_away_and_back_is_the_same_run(runs: Path) -> None:
    store = Store(runs)
    ended(runs, "run")
    look(store)
    shutil.copytree(runs / "run", runs / "copy")
    shutil.rmtree(runs / "run")
    (runs / "copy").rename(runs / "run")
    assert steps_of(view(store, "run")) == 3
    assert look(store).left_out == ()


def test_another_run_in_the_same_folder_begins_anew(runs: Path) -> None:
    store = Store(runs)
    ended(runs, "run")
    look(store)
    inode = (runs / "run").stat().st_ino
    for file in (runs / "run").iterdir():
        file.unlink()
    shutil.rmtree(runs / "aside", ignore_errors=True)
    other = ended(runs, "aside", steps=1, created_at=LATER)
    for file in other.path.iterdir():
        file.replace(runs / "run" / file.name)
    document = json.loads((runs / "run" / "run.json").read_text())
    (runs / "run" / "run.json").write_text(json.dumps({**document, "run_id": "run"}))
    assert (runs / "run").stat().st_ino == inode
    assert steps_of(view(store, "run")) == 1
