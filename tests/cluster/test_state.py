"""Where state lies: whom it is trusted from, locking, and writing in one step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.errors import ClusterError, LabBusy, StateRefused
from cluster.state import LOCK_FILE, STATE_FILE, LabDirectory, state_root


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "ddplab"


def test_lies_in_the_runtime_directory_and_is_private(runtime: Path) -> None:
    assert state_root(os.environ, os.geteuid()) == runtime
    assert runtime.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("value", [None, "", "/nowhere", "/proc/self/status"])
def test_falls_back_to_tmp(value: str | None) -> None:
    environ = {} if value is None else {"XDG_RUNTIME_DIR": value}
    assert state_root(environ, os.geteuid()) == Path(f"/tmp/ddplab-{os.geteuid()}")


def test_a_runtime_directory_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    somebody = os.geteuid() + 1
    with pytest.raises(StateRefused, match="cannot be trusted"):
        # the fallback is then /tmp/ddplab-<uid>, which this process makes as its own user
        try:
            state_root({"XDG_RUNTIME_DIR": str(tmp_path)}, somebody)
        finally:
            Path(f"/tmp/ddplab-{somebody}").rmdir()


def test_refuses_a_root_that_others_can_write_to(runtime: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o777)
    with pytest.raises(StateRefused) as caught:
        LabDirectory.of("a")
    assert caught.value.seen is not None and "777" in caught.value.seen


def test_refuses_a_link_and_a_file_in_its_place(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateRefused):
        LabDirectory.of("a")
    runtime.unlink()
    runtime.write_text("")
    with pytest.raises(StateRefused):
        LabDirectory.of("a")


@pytest.mark.parametrize("name", ["", "A", "a/b", "../a", "-a", "a" * 32, "a b", "a.b"])
def test_refuses_names_that_are_no_names(name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a lab"):
        LabDirectory.of(name)


def test_names_are_matched_exactly() -> None:
    for name in ("ab", "a", "node1", "node10"):
        directory = LabDirectory.of(name)
        with directory.locked():
            directory.write({"mark": name})
    assert LabDirectory.names() == ("a", "ab", "node1", "node10")
    with LabDirectory.of("a").locked():
        LabDirectory.of("a").clear()
    assert LabDirectory.names() == ("ab", "node1", "node10")
    read = LabDirectory.of("node1").read()
    assert read is not None and read["mark"] == "node1"


def test_nothing_is_up_before_anything_is_written() -> None:
    assert LabDirectory.of("a").read() is None
    assert LabDirectory.names() == ()


def test_writing_is_one_step() -> None:
    directory = LabDirectory.of("a")
    with directory.locked():
        directory.write({"value": 1})
        with pytest.raises(TypeError):
            directory.write({"value": object()})
    read = directory.read()
    assert read is not None and read["value"] == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 99}'])
def test_refuses_state_that_it_cannot_read(text: str) -> None:
    directory = LabDirectory.of("a")
    with directory.locked():
        (directory.path / STATE_FILE).write_text(text)
    with pytest.raises(StateRefused, match=r"state\.json"):
        directory.read()


def test_clear_leaves_the_lock_and_follows_no_links(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("x")
    directory = LabDirectory.of("a")
    with directory.locked():
        directory.write({})
        (directory.path / "sub").mkdir()
        (directory.path / "sub" / "file").write_text("x")
        (directory.path / "link").symlink_to(foreign)
        directory.clear()
    assert [entry.name for entry in directory.path.iterdir()] == [LOCK_FILE]
    assert (foreign / "precious").read_text() == "x"


def test_remove_leaves_nothing_and_the_next_lock_is_a_new_one(runtime: Path) -> None:
    directory = LabDirectory.of("a")
    with directory.locked():
        directory.write({})
        directory.remove()
        assert list(runtime.iterdir()) == []
        with LabDirectory.of("a").locked(timeout_s=0):
            pass
    with directory.locked(timeout_s=0):
        pass


def test_a_lock_held_elsewhere_is_named_with_its_process() -> None:
    script = (
        "import sys; from cluster.state import LabDirectory\n"
        "with LabDirectory.of('a').locked():\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LabBusy) as caught, LabDirectory.of("a").locked(timeout_s=0.1):
            pass
        assert caught.value.seen is not None and str(other.pid) in caught.value.seen
        other.kill()
    with LabDirectory.of("a").locked(timeout_s=1):
        assert (LabDirectory.of("a").path / LOCK_FILE).read_text() == str(os.getpid())


def test_a_use_ends_with_its_process_however_it_ends() -> None:
    script = (
        "import sys; from cluster.state import LabDirectory\n"
        "with LabDirectory.of('a').in_use('run r1'):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    directory = LabDirectory.of("a")
    with directory.locked():
        directory.write({})
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert directory.user() == f"run r1 (process {other.pid})"
        with pytest.raises(LabBusy), directory.in_use("run r2"):
            pass
        other.kill()
        other.wait()
    assert directory.user() is None
    with directory.in_use("run r2") as use:
        use.tell("run r3")
        assert directory.user() == f"run r3 (process {os.getpid()})"
    with directory.locked():
        directory.remove()
    assert directory.user() is None
    with pytest.raises(FileNotFoundError), directory.in_use("run r4"):
        pass


def test_state_is_readable_json() -> None:
    directory = LabDirectory.of("a")
    with directory.locked():
        directory.write({"probe": None})
    assert json.loads((directory.path / STATE_FILE).read_text()) == {"schema": 1, "probe": None}
