"""Whatever lies in a folder of runs does no harm: foreign, broken, linked, closed, replaced."""

import os
import shutil
from pathlib import Path

import pytest

from jobs.server.store import Store
from tests.jobs.looking import at_step, look, states, steps_of, view
from tests.jobs.run_folders import ended, going_on


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_what_is_no_run_is_passed_over(runs: Path) -> None:
    ended(runs, "run")
    (runs / "notes").mkdir()
    (runs / "notes" / "todo.txt").write_text("mine")
    (runs / ".new-x").mkdir()
    (runs / ".new-x" / "run.json").write_text("{")
    (runs / "file").write_text("{")
    (runs / "loop").symlink_to(runs)
    os.mkfifo(runs / "pipe")
    (runs / "piped").mkdir()
    os.mkfifo(runs / "piped" / "run.json")
    snapshot = look(Store(runs))
    assert (states(snapshot), snapshot.left_out) == ({"run": "ok"}, ())


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("run.json", "{", "run.json"),
        ("run.json", "[]", "list"),
        ("run.json", '{"run_id": "another"}', "another"),
        ("run.json", '{"run_id": "bad", "created_at": "x"}', "KeyError"),
        ("run.json", '{"run_id": "bad", "turns": 3}', "TypeError"),
        ("run.json", '{"run_id": "bad", "turns": {"round": 1}}', "KeyError"),
        ("run.json", "[" * 200_000, "recursion"),
        ("run.json", b"\xff\xfe\x00", "run.json"),
        ("summary.json", "oops", "summary.json"),
        ("prediction.json", "3", "prediction.json"),
        ("rank1.jsonl", "no record\n", "rank1.jsonl:"),
        ("rank1.jsonl", '{"kind":"step","step":7}\n', "rank1.jsonl:"),
        ("rank1.jsonl", "\0" * 50 + "\n", "rank1.jsonl:"),
    ],
)
def test_a_broken_run_is_left_out_and_said_and_the_others_stay(
    runs: Path, caplog: pytest.LogCaptureFixture, file: str, content: str | bytes, told: str
) -> None:
    ended(runs, "good", created_at="2026-11-30T10:00:00")
    bad = ended(runs, "bad", created_at="2026-11-30T11:00:00").path / file
    before = bad.read_bytes() if file.startswith("rank") else b""
    bad.write_bytes(before + (content.encode() if isinstance(content, str) else content))
    store = Store(runs)
    for _ in range(3):
        snapshot = look(store)
        assert states(snapshot) == {"good": "ok"}
        (left_out,) = snapshot.left_out
        assert left_out.folder == "bad"
        assert told in left_out.reason
        assert len(left_out.reason) <= 300
    assert len([line for line in caplog.messages if "bad" in line]) == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", '"3"', "null", "true", "[]"])
def test_a_step_that_is_no_time_breaks_its_run(runs: Path, value: str) -> None:
    with at_step(runs, 2) as ranks:
        line = (ranks.folder.path / "rank0.jsonl").read_text().splitlines()[-1]
        for rank in range(4):
            ranks.text(rank, line.replace('"forward_s":0.061', f'"forward_s":{value}') + "\n")
        (left_out,) = look(Store(runs)).left_out
        assert "finite number" in left_out.reason


def test_a_time_below_zero_lowers_no_counter(runs: Path) -> None:
    store = Store(runs)
    with at_step(runs, 1) as ranks:
        before = [rank.phase_s["other"] for rank in view(store, "live").ranks]
        ranks.step(1, other_s=-1e-9)
        assert [rank.phase_s["other"] for rank in view(store, "live").ranks] == before


def test_records_that_are_replaced_or_cut_off_break_their_run(runs: Path) -> None:
    for harm in ("cut off", "replaced", "removed"):
        store = Store(runs)
        with at_step(runs, 3, harm.replace(" ", "-")) as ranks:
            look(store)
            file = ranks.folder.path / "rank2.jsonl"
            if harm == "cut off":
                os.truncate(file, 10)
            elif harm == "replaced":
                shutil.copy(file, ranks.folder.path / "copy")
                (ranks.folder.path / "copy").replace(file)
            else:
                file.unlink()
            for _ in range(2):
                assert [it.folder for it in look(store).left_out] == [ranks.folder.run_id]
        shutil.rmtree(ranks.folder.path)


def test_links_and_pipes_in_a_run_are_not_followed(runs: Path, tmp_path: Path) -> None:
    secret = ended(tmp_path / "elsewhere", "secret").path
    with going_on(runs, "live", num_ranks=2) as ranks:
        ranks.headers()
        ranks.step(0)
        for name in ("rank0.jsonl", "rank1.jsonl"):
            (ranks.folder.path / name).unlink()
        (ranks.folder.path / "rank0.jsonl").symlink_to(secret / "rank0.jsonl")
        os.mkfifo(ranks.folder.path / "rank1.jsonl")
        (ranks.folder.path / "summary.json").symlink_to(secret / "summary.json")
        store = Store(runs)
        shown = view(store, "live")
        assert (shown.state, steps_of(shown)) == ("running", 0)
        assert [rank.last_step for rank in shown.ranks] == [None, None]


@pytest.mark.parametrize("name", [".", "run.json", "rank1.jsonl", ".running"])
def test_what_may_not_be_read_is_left_out(
    runs: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Stood in for: tests may run as root, whom no mode keeps out."""
    ended(runs, "good", created_at="2026-11-30T10:00:00")
    with at_step(runs, 2) as ranks:
        closed = ranks.folder.path / name
        opened, looked = Path.open, Path.lstat

        def refuse(path: Path) -> None:
            if path == closed or (name == "." and path.parent == closed):
                raise PermissionError(13, "Permission denied", str(path))

        def open_unless(path: Path, *arguments: object, **named: object) -> object:
            refuse(path)
            return opened(path, *arguments, **named)  # type: ignore[arg-type, call-overload]

        def look_unless(path: Path) -> os.stat_result:
            if name == ".":
                refuse(path)
            return looked(path)

        monkeypatch.setattr(Path, "open", open_unless)
        monkeypatch.setattr(Path, "lstat", look_unless)
        snapshot = look(Store(runs))
        assert states(snapshot) == {"good": "ok"}
        assert "Permission denied" in snapshot.left_out[0].reason
