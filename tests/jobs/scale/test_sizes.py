"""Sizes one after the other, with real agents and processes: what is kept, and what is ended."""

import csv
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs.scale.places
import jobs.scale.sizes
from cluster.backends import Chosen
from cluster.errors import ProbeFailed
from cluster.lab import LabEvent
from cluster.netns import NETNS
from cluster.nodes import Making
from cluster.state import LabDirectory
from jobs.errors import LaunchError, RunFailed, RunStopped
from jobs.progress import PhaseProgress
from jobs.scale.places import LabChoice
from jobs.scale.plan import Size, plan_scale
from jobs.scale.rows import ScaleRow
from jobs.scale.sizes import ScaleResult, Turns, scale
from jobs.spec import JobSpec
from tests.jobs.command import valid
from tests.jobs.conftest import MakeLab, cluster_spec
from tests.jobs.scale_labs import STAND_IN, Labs, stand_in_labs

CHOICE = LabChoice(Chosen(NETNS, "it is here"), Making())

BATCH = 8
STOPS = pytest.mark.parametrize(
    ("number", "who"), [(signal.SIGINT, "you"), (signal.SIGTERM, "SIGTERM")]
)


class Notes:
    """A ScaleObserver that keeps what it sees, and may act on a step."""

    def __init__(self, act: Callable[[Size, PhaseProgress], None] | None = None) -> None:
        self.sizes: list[str] = []
        self.done: dict[str, Sequence[ScaleRow]] = {}
        self._act = act
        self._size = Size(0, 0)

    def size(self, size: Size) -> None:
        self._size = size
        self.sizes.append(str(size))

    def lab(self, event: LabEvent) -> None:
        assert event.step == "start"

    def size_done(self, size: Size, rows: Sequence[ScaleRow]) -> None:
        self.done[str(size)] = rows

    def begin(self, folder: Any, run: Any) -> None:
        assert folder.run_id == run["run_id"]

    def progress(self, phase: PhaseProgress, ranks: Any) -> None:
        del ranks
        if self._act:
            self._act(self._size, phase)

    def tick(self, now_s: float) -> None:
        del now_s

    def links_changed(self, change: Any) -> None:
        del change

    def end(self) -> None:
        pass


@pytest.fixture
def labs(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> Labs:
    return stand_in_labs(make_lab, monkeypatch)


def job(name: str) -> JobSpec:
    return JobSpec.model_validate({"name": name, "data": {"batch_size": BATCH}})


def run_it(
    runs: Path, *names: str, nodes: str = "1 2", scaling: str = "weak", notes: Any = None
) -> ScaleResult:
    plan = plan_scale([job(name) for name in names], cluster_spec(2, 2), nodes, scaling)
    turns = Turns(rounds=2, turn_steps=3, program=STAND_IN)
    return scale(plan, CHOICE, turns, runs, notes or Notes())


def document(result: ScaleResult) -> dict[str, Any]:
    assert result.files is not None
    return valid((result.files.folder.path / "scale.json").read_text(), "scale")


def summary(runs: Path, run_id: str) -> dict[str, Any]:
    return valid((runs / run_id / "summary.json").read_text(), "run")


def test_every_size_is_run_and_kept_and_its_lab_taken_down(labs: Labs, tmp_path: Path) -> None:
    notes = Notes()
    result = run_it(runs := tmp_path / "runs", "ring", "hier", notes=notes)
    assert result.error is None
    assert notes.sizes == list(notes.done) == ["1x1", "1x2", "2x2"]
    assert [name.rsplit("-", 1) for name in labs.had] == [
        [f"scale-{size}", str(os.getpid())] for size in notes.sizes
    ]
    assert labs.up == []
    assert [(row.job, str(row.size)) for row in result.rows] == [
        (name, size) for name in ("ring", "hier") for size in notes.sizes
    ]
    assert [row.efficiency for row in result.rows[:3]] == pytest.approx([1, 8 / 10, 8 / 14])
    assert [row.predicted for row in result.rows[:3]] == pytest.approx([8 / 7, 8 / 9, 8 / 13])
    assert [row.node_efficiency for row in result.rows[:3]] == [None, 1, pytest.approx(10 / 14)]
    lost = result.rows[2].lost
    assert lost is not None
    assert [lost.network_s, lost.contention_s, lost.total_s] == pytest.approx([0.006, 0, 0.006])
    for row in result.rows:
        written = summary(runs, row.run_id)
        assert written["scaling_efficiency_ratio"] == row.efficiency
        assert written["scaling_baseline"]["run_id"] == row.one_rank_run
        assert row.run_id.split("-", 2)[2] == f"scale-{row.job}-{row.size}-200mbit"


def test_what_a_killed_scale_left_is_cleared(labs: Labs, tmp_path: Path) -> None:
    del labs
    ended = {"pid": 1, "pid_ticks": 1, "parent": 1, "parent_ticks": 1, "boot": "another"}
    holder = {**ended, "user_namespace": False}
    left, mine = LabDirectory.of("scale-2x2-1"), LabDirectory.of("scales")
    for directory in (left, mine):
        directory.path.mkdir(mode=0o700)
        directory.write({"backend": "netns", "nodes": {"holder": holder}})
    run_it(tmp_path / "runs", "ring", nodes="1")
    assert not left.path.exists()
    assert mine.path.exists()


def test_the_files_hold_every_figure(labs: Labs, tmp_path: Path) -> None:
    del labs
    result = run_it(tmp_path / "runs", "ring", "hier")
    found = document(result)
    assert (found["complete"], found["error"], found["scaling"]) == (True, None, "weak")
    assert found["sizes"] == [[1, 1], [1, 2], [2, 2]]
    assert [each["job"] for each in found["jobs"]] == ["ring", "hier"]
    sizes = found["jobs"][1]["sizes"]
    assert [size["world_size"] for size in sizes] == [1, 2, 4]
    assert sizes[0]["lost_seconds"] is None
    assert sizes[2]["lost_seconds"]["total"] == pytest.approx(0.006)
    assert sizes[2]["samples_per_step"] == 4 * BATCH
    assert result.files is not None
    with (result.files.folder.path / "scale.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6
    assert float(lines[5]["scaling_efficiency_ratio"]) == sizes[2]["scaling_efficiency_ratio"]
    assert float(lines[5]["lost_network_seconds"]) == sizes[2]["lost_seconds"]["network"]
    assert lines[3]["lost_network_seconds"] == ""


def test_strong_scaling_shares_the_batch(labs: Labs, tmp_path: Path) -> None:
    del labs
    result = run_it(tmp_path / "runs", "ring", scaling="strong")
    assert [row.figures.samples for row in result.rows] == [BATCH] * 3
    assert [row.efficiency for row in result.rows] == pytest.approx([1, 8 / (2 * 10), 8 / (4 * 14)])
    baseline = summary(tmp_path / "runs", result.rows[2].run_id)["scaling_baseline"]
    assert baseline["text"].startswith("strong scaling: throughput / (4 x throughput")


def test_a_size_that_fails_keeps_what_earlier_ones_gave(labs: Labs, tmp_path: Path) -> None:
    notes = Notes()
    result = run_it(runs := tmp_path / "runs", "ring", "killed", notes=notes)
    assert isinstance(result.error, RunFailed)
    assert result.error.message.startswith("size 1x2: rank 1 (node0) was killed by SIGKILL")
    assert (notes.sizes, list(notes.done), labs.up) == (["1x1", "1x2"], ["1x1"], [])
    assert [str(row.size) for row in result.rows] == ["1x1", "1x1"]
    found = document(result)
    assert found["complete"] is False
    assert found["error"]["message"].startswith("size 1x2: rank 1 (node0) was killed")
    failed = sorted(path.parent.name for path in runs.glob("*-1x2-*/summary.json"))
    assert len(failed) == 2
    assert summary(runs, failed[0])["scaling_efficiency_ratio"] is None


def test_a_lab_that_cannot_be_made_names_its_size(labs: Labs, tmp_path: Path) -> None:
    labs.fail_at["2x2"] = ProbeFailed("too fast", "rule", ("RATE=1mbit", "make cluster-down"))
    result = run_it(tmp_path / "runs", "ring")
    assert isinstance(result.error, LaunchError)
    assert (result.error.message, result.error.fix) == ("size 2x2: too fast", ("RATE=1mbit",))
    assert [str(row.size) for row in result.rows] == ["1x1", "1x2"]
    assert labs.up == []


def test_nothing_done_leaves_no_table(labs: Labs, tmp_path: Path) -> None:
    labs.fail_at["1x1"] = ProbeFailed("too fast")
    result = run_it(tmp_path / "runs", "ring")
    assert (list(result.rows), result.files) == ([], None)
    assert not (tmp_path / "runs").exists()


@STOPS
def test_a_stop_while_ranks_run_takes_the_lab_down(
    labs: Labs, tmp_path: Path, number: signal.Signals, who: str
) -> None:
    def stop(size: Size, phase: PhaseProgress) -> None:
        if size == Size(1, 2) and phase.phase == "train":
            os.kill(os.getpid(), number)

    result = run_it(tmp_path / "runs", "hang", notes=Notes(stop))
    assert isinstance(result.error, RunStopped)
    assert result.error.message == f"stopped by {who} at size 1x2; its lab was taken down"
    assert labs.up == []
    assert [str(row.size) for row in result.rows] == ["1x1"]
    assert document(result)["error"]["kind"] == "stopped"


@STOPS
def test_a_stop_while_a_lab_comes_up(
    labs: Labs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    who: str,
) -> None:
    def bring_up(spec: Any, *arguments: Any, **options: Any) -> Any:
        if spec.name == "1x2":
            os.kill(os.getpid(), number)
            time.sleep(5)
        return labs.bring_up(spec, *arguments, **options)

    monkeypatch.setattr(jobs.scale.places, "bring_up", bring_up)
    result = run_it(tmp_path / "runs", "ring")
    assert result.error is not None
    assert result.error.message == f"stopped by {who} at size 1x2; its lab was taken down"
    assert [str(row.size) for row in result.rows] == ["1x1"]
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def test_a_stop_while_a_lab_is_taken_down_waits_for_it_and_is_heard(
    labs: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_down(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        labs.take_down(name)

    monkeypatch.setattr(jobs.scale.places, "take_down", take_down)
    result = run_it(tmp_path / "runs", "ring")
    assert isinstance(result.error, RunStopped)
    assert (labs.up, len(labs.had)) == ([], 1)


def test_links_that_were_changed_meanwhile_do_not_count(
    labs: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turns = jobs.scale.sizes.take_turns

    def changed(*arguments: Any, **options: Any) -> Any:
        taken = take_turns(*arguments, **options)
        results = [
            replace(each, run={**each.run, "link_changes": [{"node": "node0"}]})
            for each in taken.results
        ]
        return replace(taken, results=results)

    monkeypatch.setattr(jobs.scale.sizes, "take_turns", changed)
    result = run_it(tmp_path / "runs", "ring")
    assert result.error is not None
    assert "size 1x1: links of its lab were changed" in result.error.message
    assert (list(result.rows), labs.up) == ([], [])


def test_a_run_that_was_cleaned_away_meanwhile_does_no_harm(labs: Labs, tmp_path: Path) -> None:
    del labs
    runs = tmp_path / "runs"

    class Cleaning(Notes):
        def size_done(self, size: Size, rows: Sequence[ScaleRow]) -> None:
            super().size_done(size, rows)
            (runs / rows[0].run_id / "summary.json").unlink()

    result = run_it(runs, "ring", nodes="1", notes=Cleaning())
    assert result.error is None
    assert len(document(result)["jobs"][0]["sizes"]) == 2
    assert json.loads((runs / result.rows[0].run_id / "run.json").read_text())
