"""What ranks must see and may write to, asked before any of them starts."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import jobs.handover
from cluster.errors import HostError
from cluster.nodes import Node, NodeProcess
from jobs.errors import LaunchError
from jobs.handover import hand_over, require_seen
from jobs.launch import launch
from jobs.runfolder import RunFolder
from jobs.runinfo import PROJECT
from jobs.spec import JobSpec, load_job
from tests.jobs.conftest import LocalNodes
from tests.jobs.test_launch import STAND_IN, Notes, job, run_it

AS_OTHERS = (
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
)


class Others(LocalNodes):
    """Nodes whose programs run as somebody else: where root asks, really so."""

    @property
    def user(self) -> tuple[int, int]:
        return os.geteuid() + 1, os.getegid() + 1

    def exec(self, node: Node, argv: Sequence[str], **options: Any) -> NodeProcess:
        return super().exec(node, [*AS_OTHERS, *argv], **options)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is open to all, and so are those above it."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def inputs(place: Path) -> JobSpec:
    """A job that reads a text and a model of one's own."""
    (place / "text").write_bytes(bytes(10_000))
    (place / "my.py").write_text("")
    sets = [f"data.path={place}/text", f"model.import={place}/my.py:build"]
    return load_job("hier", sets)


def test_nodes_must_see_the_project_what_the_job_names_and_write_to_runs(
    place: Path, inputs: JobSpec
) -> None:
    nodes = LocalNodes(2)
    require_seen(nodes, place / "runs", [load_job("ring"), inputs])
    assert nodes.asked == [
        (place / "runs", True),
        (PROJECT, False),
        (place / "text", False),
        (place / "my.py", False),
    ]


@pytest.mark.parametrize("name", ["runs", "text", "my.py"])
def test_what_nodes_do_not_see_is_refused(place: Path, inputs: JobSpec, name: str) -> None:
    nodes = LocalNodes(2)
    nodes.hidden = place / name
    with pytest.raises(HostError, match=f"{name} cannot be seen"):
        require_seen(nodes, place / "runs", [inputs])


def test_a_run_that_nodes_do_not_see_leaves_nothing(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    lab.nodes.hidden = tmp_path
    with pytest.raises(HostError):
        run_it(lab, tmp_path / "runs", job("ok"))
    assert not (tmp_path / "runs").exists()
    assert lab.nodes.processes == []


@pytest.mark.parametrize(
    ("name", "mode", "closed"),
    [
        ("text", 0o600, "text"),
        ("my.py", 0o200, "my.py"),
        ("runs", 0o600, "runs"),
        ("runs", 0o100, "runs"),
        ("", 0o600, ""),  # and all else below it
    ],
)
def test_what_is_closed_to_who_ranks_run_as_is_told_with_its_fix(
    place: Path,
    inputs: JobSpec,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mode: int,
    closed: str,
) -> None:
    monkeypatch.setattr(jobs.handover, "PROJECT", place)
    (place / "runs").mkdir()
    nodes = Others(2)
    require_seen(nodes, place / "runs", [inputs])
    (place / name).chmod(mode if AS_OTHERS else mode & 0o300)
    try:
        with pytest.raises(LaunchError) as caught:
            require_seen(nodes, place / "runs", [inputs])
    finally:
        (place / name).chmod(0o700)
    assert f"{place / closed} is closed to ranks, which run as user " in caught.value.message
    assert caught.value.fix[0] == f"chmod -R go+rX {place / closed}"


@pytest.mark.parametrize(
    ("program", "seen"),
    [(["sleep", "60"], "no answer within 0.2 s"), (["sh", "-c", "echo odd; exit 3"], "odd")],
    ids=["hangs", "fails"],
)
def test_a_node_that_does_not_answer_is_told(
    place: Path, inputs: JobSpec, monkeypatch: pytest.MonkeyPatch, program: list[str], seen: str
) -> None:
    class Mute(Others):
        def exec(self, node: Node, argv: Sequence[str], **options: Any) -> NodeProcess:
            del argv
            return super().exec(node, program, **options)

    monkeypatch.setattr(jobs.handover, "TIMEOUT_S", 0.2 if "sleep" in program else 20.0)
    with pytest.raises(LaunchError, match="does not say what ranks may read") as caught:
        require_seen(Mute(2), place / "runs", [inputs])
    assert caught.value.seen == seen


def test_ranks_that_run_as_us_are_not_asked(place: Path, inputs: JobSpec) -> None:
    nodes = LocalNodes(2)
    require_seen(nodes, place / "runs", [inputs])
    assert nodes.processes == []


def test_a_run_folder_is_handed_to_who_ranks_run_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jobs.handover.os, "chown", lambda *words: given.append(words))
    folder = RunFolder(tmp_path)
    hand_over(folder, LocalNodes(1))
    assert given == []
    hand_over(folder, Others(1))
    assert given == [(tmp_path, *Others(1).user)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_gives_the_folder_away_before_ranks_start(
    make_lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalNodes, "user", Others.user)
    result = launch(job("ok"), make_lab(), tmp_path / "runs", Notes(), STAND_IN)
    assert result.error is None
    status = result.folder.path.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode) & 0o700) == (os.geteuid() + 1, 0o700)
