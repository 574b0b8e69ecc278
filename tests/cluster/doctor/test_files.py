"""Whose the files are: what belongs to others is named with the command that takes it back."""

import os
from pathlib import Path
from typing import Any

import pytest

from cluster.doctor import files
from cluster.doctor.checks import FAULT, OK, WARNING
from cluster.doctor.files import files_check, state_check

STRANGER = 54321


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "my lab"
    for folder in ("runs/one", ".venvs/1/lib", ".git/objects", "jobs"):
        (top / folder).mkdir(parents=True)
    for file in ("runs/one/run.json", ".venvs/1/lib/x.py", ".git/objects/00", "jobs/a.py"):
        (top / file).touch()
    return top


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets files belong to a stranger, for tests that may not give them away."""
    strange: set[str] = set()
    lstat, scandir = Path.lstat, os.scandir

    class Entry:
        def __init__(self, entry: "os.DirEntry[str]") -> None:
            self.path, self._entry = entry.path, entry

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return self._entry.is_dir(follow_symlinks=follow_symlinks)

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            del follow_symlinks
            return Path(self.path).lstat()

    def owned(path: Path) -> os.stat_result:
        status = lstat(path)
        return (
            os.stat_result((*status[:4], STRANGER, *status[5:]))
            if str(path) in strange
            else (os.stat_result((*status[:4], 1000, *status[5:])))
        )

    monkeypatch.setattr(Path, "lstat", owned)
    monkeypatch.setattr(os, "scandir", lambda path: [Entry(entry) for entry in scandir(path)])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(files, "_ourselves", lambda: "mei:")
    return strange


def test_a_checkout_of_ones_own_is_ok(checkout: Path, own: set[str]) -> None:
    del own
    check = files_check(checkout, checkout / "runs")
    assert (check.state, check.fix) == (OK, ())


def test_a_file_of_somebody_else_is_a_warning_with_chown(checkout: Path, own: set[str]) -> None:
    own.add(str(checkout / "jobs" / "a.py"))
    check = files_check(checkout, checkout / "runs")
    assert check.state == WARNING
    assert check.seen == f"not yours: jobs/a.py (user {STRANGER}'s)"
    assert check.fix == (f"sudo chown -R mei: '{checkout}/jobs/a.py'",)


def test_a_run_of_somebody_else_is_a_fault(checkout: Path, own: set[str]) -> None:
    """It could not be removed by runs-clean; what lies in it is not named once more."""
    own |= {str(checkout / "runs" / "one"), str(checkout / "runs" / "one" / "run.json")}
    check = files_check(checkout, checkout / "runs")
    assert check.state == FAULT
    assert check.seen == "not yours: runs/one (user 54321's)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_runs_of_roots_own_ranks_are_fine_and_theirs_elsewhere_are_not(checkout: Path) -> None:
    os.chown(checkout / "runs/one", files.RANKS_OF_ROOT, files.RANKS_OF_ROOT)
    assert files_check(checkout, checkout / "runs").state == OK
    os.chown(checkout / "jobs", files.RANKS_OF_ROOT, files.RANKS_OF_ROOT)
    check = files_check(checkout, checkout / "runs")
    assert check.state == WARNING and "jobs (" in check.seen and "runs" not in check.seen


def test_of_environments_and_gits_objects_only_the_top_counts(
    checkout: Path, own: set[str]
) -> None:
    own |= {str(checkout / ".venvs/1/lib/x.py"), str(checkout / ".git/objects/00")}
    assert files_check(checkout, checkout / "runs").state == OK
    own.add(str(checkout / ".venvs"))
    assert ".venvs (user 54321's)" in files_check(checkout, checkout / "runs").seen


def test_many_are_counted_and_taken_back_at_once(checkout: Path, own: set[str]) -> None:
    for number in range(5):
        (checkout / "jobs" / f"b{number}.py").touch()
        own.add(str(checkout / "jobs" / f"b{number}.py"))
    check = files_check(checkout, checkout / "runs")
    assert check.seen.endswith(" and 2 more")
    assert check.fix == (f"sudo chown -R mei: '{checkout}'",)


def test_a_checkout_of_somebody_else_is_cloned_not_taken(checkout: Path, own: set[str]) -> None:
    own.add(str(checkout))
    check = files_check(checkout, checkout / "runs")
    assert check.fix[0] == "clone it into a folder of your own"
    assert "if it is yours" in check.fix[1]


def test_root_in_somebody_elses_checkout_is_told_to_be_them(
    checkout: Path, own: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del own
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(files, "_name", lambda uid: {1000: "mei"}[uid])
    check = files_check(checkout, checkout / "runs")
    assert check.state == WARNING
    assert check.seen.startswith("this checkout is mei's")
    assert check.fix == ("run make as mei",)


def test_a_folder_closed_to_its_owner(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = checkout / "runs"
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != runs)
    check = files_check(checkout, runs)
    assert check.state == FAULT
    assert check.fix == (f"chmod u+rwx '{runs}'",)


def test_what_a_lab_would_hide_is_a_fault() -> None:
    check = files_check(Path("/run/user/1000/ddplab"), Path("runs"))
    assert check.state == FAULT
    assert "cannot be seen inside a lab" in check.seen


def test_state_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    check = state_check(environ)
    assert (check.state, check.seen) == (OK, f"{tmp_path}/ddplab is yours alone")
    (tmp_path / "ddplab").chmod(0o777)
    check = state_check(environ)
    assert check.state == FAULT
    assert "others may write to it (mode 777)" in check.seen
    assert f"ls -ld {tmp_path}/ddplab" in check.fix[0]
