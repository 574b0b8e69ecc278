"""All labs at once: up, coming up, changed, dead, spoilt; exact names; with a backend of words."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import cluster.kept
from cluster.errors import HostError
from cluster.lab import bring_up
from cluster.nodes import Making, Place
from cluster.spec import load_cluster
from cluster.state import STATE_FILE, LabDirectory
from cluster.survey import Condition, sight, survey
from tests.cluster.recorder import Recorder
from tests.cluster.remembered import backend_of, only

SPEC = load_cluster("2x2")


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorder]:
    """The nodes of each lab, by its name; a lab is dead where they are not alive."""
    nodes: dict[str, Recorder] = {}

    def create(place: Place) -> Recorder:
        return nodes.setdefault(place.name, Recorder())

    def attach(directory: Path, _saved: object) -> Recorder:
        if not nodes[directory.name].alive:
            raise cluster.kept.NoLab("the process it lived in has ended")
        return nodes[directory.name]

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    only(monkeypatch, backend_of("told", create, attach))
    return nodes


def up(*names: str) -> None:
    for name in names:
        bring_up(SPEC, name, Making("told"), probe=False)


def conditions() -> dict[str, Condition]:
    return {each.name: each.condition for each in survey()}


def test_no_labs_are_no_labs() -> None:
    assert survey() == ()
    assert sight("a") is None


def test_labs_are_told_by_their_exact_names(made: dict[str, Recorder]) -> None:
    up("ab", "a", "node1", "node10")
    assert list(conditions()) == ["a", "ab", "node1", "node10"]
    made["a"].alive = False
    assert conditions() == {
        "a": Condition.REMOVED,
        **dict.fromkeys(("ab", "node1", "node10"), Condition.UP),
    }
    assert list(conditions()) == ["ab", "node1", "node10"]  # told of once
    assert sight("a") is None


def test_a_dead_lab_says_how_it_was_found(made: dict[str, Recorder]) -> None:
    up("a")
    made["a"].alive = False
    (found,) = survey()
    assert (found.note, found.lab) == ("the process it lived in has ended", None)
    folder = LabDirectory.of("b").path
    folder.mkdir(mode=0o700)  # as a command leaves it that was killed at once
    (folder / "lock").write_text("71")
    (found,) = survey()
    assert found.condition is Condition.REMOVED
    assert found.note == "it never came up: the command that made it was killed"
    assert not folder.exists()


def test_who_brings_a_lab_up_is_told_and_not_disturbed() -> None:
    directory = LabDirectory.of("a")
    with directory.locked():
        found = sight("a")
        assert found is not None and found.worker is not None
        assert (found.condition, found.worker.what) == (Condition.COMING_UP, str(os.getpid()))
        assert directory.path.is_dir()


def test_who_takes_a_dead_lab_away_is_not_disturbed(made: dict[str, Recorder]) -> None:
    up("a")
    made["a"].alive = False
    with LabDirectory.of("a").locked():
        assert conditions() == {"a": Condition.BUSY}
    assert conditions() == {"a": Condition.REMOVED}


def test_what_runs_on_a_lab_is_told_with_its_beginning(made: dict[str, Recorder]) -> None:
    del made
    up("a", "b")
    with ExitStack() as stack:
        use = stack.enter_context(LabDirectory.of("a").in_use("its links are being measured"))
        use.tell("run 20261130-1104-hier")
        file = LabDirectory.of("a").path / "use"
        os.utime(file, (1000, 1000))
        first, second = survey()
        assert first.usage is not None
        assert first.usage.what == f"run 20261130-1104-hier (process {os.getpid()})"
        assert first.usage.since == 1000
        assert (first.worker, second.usage, second.worker) == (None, None, None)
    (first, _) = survey()
    assert first.usage is None


def test_looking_never_makes_a_lab_look_used() -> None:
    """Whoever looks holds a lock for a moment; a job that starts just then is not refused."""
    up("a")
    directory = LabDirectory.of("a")
    with directory.in_use("first"):
        pass
    looking = os.open(directory.path / "use", os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.02, os.close, [looking]).start()
    with directory.in_use("second") as use:
        assert not use.lab_taken_down


@pytest.mark.parametrize(
    ("seen", "note"), [(None, "it does not answer"), ("/s", "it does not answer: /s")]
)
def test_a_lab_that_cannot_be_asked_for_is_told_with_what_is_known(
    monkeypatch: pytest.MonkeyPatch, seen: str | None, note: str
) -> None:
    def attach(*_: object) -> Recorder:
        raise HostError("it does not answer", None, "start it", seen=seen)

    up("a")
    only(monkeypatch, backend_of("told", lambda _: Recorder(), attach))
    (found,) = survey()
    assert (found.condition, found.note, found.fix) == (Condition.UNREADABLE, note, "start it")


@pytest.fixture
def spoilt(made: dict[str, Recorder]) -> Iterator[Path]:
    del made
    up("a", "b")
    file = LabDirectory.of("a").path / STATE_FILE
    file.write_text('{"schema": 1}')
    yield file


def test_a_spoilt_lab_is_told_and_kept_and_hides_no_other(spoilt: Path) -> None:
    assert conditions() == {"a": Condition.UNREADABLE, "b": Condition.UP}
    found = sight("a")
    assert found is not None and found.note is not None and found.fix is not None
    assert str(spoilt) in found.note
    assert str(spoilt.parent) in found.fix
    assert spoilt.exists()


def test_what_is_no_lab_is_left_alone() -> None:
    up("a")
    root = LabDirectory.of("a").path.parent
    (root / "notes.txt").write_text("mine")
    (root / "Not A Lab").mkdir()
    (root / ".exporters").mkdir()
    (root / "linked").symlink_to(root / "a")
    assert conditions() == {"a": Condition.UP}
    assert len(list(root.iterdir())) == 5
