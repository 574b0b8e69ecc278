"""Folders that hold what several runs came to together go with the last of their runs."""

import json
from pathlib import Path

from jobs.bundles import clean_benches, clean_bundles
from jobs.runfolder import clean_runs
from tests.jobs.test_runfolder import make


def bundle(
    runs: Path, name: str, *run_ids: str, file: str = "compare.json", says: str = ""
) -> None:
    (runs / name).mkdir()
    jobs = [{"sizes": [{"run_id": run_id}]} for run_id in run_ids]
    (runs / name / file).write_text(json.dumps({"folder": says or name, "jobs": jobs}))


def test_a_bundle_stays_while_one_of_its_runs_does(tmp_path: Path) -> None:
    make(tmp_path, "old", "2026-11-30T11:04:00")
    make(tmp_path, "new", "2026-11-30T11:05:00")
    bundle(tmp_path, "both", "old", "new")
    bundle(tmp_path, "table", "old", file="scale.json")
    assert clean_bundles(tmp_path) == []
    clean_runs(tmp_path, 1)
    assert [folder.run_id for folder in clean_bundles(tmp_path)] == ["table"]
    clean_runs(tmp_path, 0)
    assert [folder.run_id for folder in clean_bundles(tmp_path)] == ["both"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    bundle(tmp_path, "copied", "gone", says="compare")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "compare.json").write_text('["not", "a", "bundle"]')
    (tmp_path / "empty").mkdir()
    (tmp_path / "compare.json").write_text("{}")
    bundle(tmp_path / "empty", "far", "gone")
    (tmp_path / "link").symlink_to(tmp_path / "empty" / "far")
    assert clean_bundles(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 5


def test_without_a_folder_of_runs_there_is_nothing_to_clean(tmp_path: Path) -> None:
    assert clean_bundles(tmp_path / "runs") == []


def test_of_benches_the_newest_stay(tmp_path: Path) -> None:
    for name, created_at in (("a", "2026-11-03"), ("b", "2026-11-01"), ("c", "2026-11-02")):
        document = {"folder": name, "created_at": created_at}
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.json").write_text(json.dumps(document))
    (tmp_path / "copied").mkdir()
    (tmp_path / "copied" / "bench.json").write_text(json.dumps({"folder": "b"}))
    assert clean_benches(tmp_path, 3) == []
    assert [folder.run_id for folder in clean_benches(tmp_path, 1)] == ["b", "c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "copied"]
    assert [folder.run_id for folder in clean_benches(tmp_path, 0)] == ["a"]
    assert clean_benches(tmp_path / "none", 0) == []
