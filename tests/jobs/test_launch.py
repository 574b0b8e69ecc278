"""The launcher against real agents and processes on this machine, with ranks that end badly."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import LabBusy
from cluster.lab import Lab
from cluster.linklog import LinkChange
from cluster.state import LabDirectory
from jobs.conclude import RunResult
from jobs.errors import JobSpecError, RunFailed, RunStopped
from jobs.launch import launch
from jobs.progress import PhaseProgress
from jobs.rankplan import Program
from jobs.records import RankRecords
from jobs.runfolder import RunFolder
from jobs.spec import JobSpec

STAND_IN = Program("stand_in:main", ("stand_in",))


class Notes:
    """An observer that keeps what it sees, and may act on a phase."""

    def __init__(self, act: Callable[[PhaseProgress], None] | None = None) -> None:
        self.phases: list[PhaseProgress] = []
        self.events: list[str] = []
        self._act = act

    def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
        assert folder.is_running()
        self.events.append(f"begin {run['run_id']}")

    def progress(self, phase: PhaseProgress, ranks: list[RankRecords]) -> None:
        assert (phase.phase == "start") == bool(ranks)
        self.phases.append(phase)
        if self._act:
            self._act(phase)

    def tick(self, now_s: float) -> None:
        del now_s

    def links_changed(self, change: LinkChange) -> None:
        raise AssertionError(change)

    def end(self) -> None:
        self.events.append("end")


def job(name: str, **changes: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": name, "train": {"steps": 6}, "ddp": {"timeout_s": 20.0}, **changes}
    )


def run_it(lab: Lab, runs: Path, spec: JobSpec, notes: Notes | None = None) -> RunResult:
    return launch(spec, lab, runs, notes or Notes(), STAND_IN)


def headers(result: RunResult) -> list[dict[str, Any]]:
    return [rank.header or {} for rank in result.ranks]


def test_a_whole_run_leaves_everything_behind(make_lab: Any, tmp_path: Path) -> None:
    notes = Notes()
    result = run_it(make_lab(), tmp_path / "runs", job("ok"), notes)
    assert result.error is None
    folder = result.folder.path
    assert result.summary == json.loads((folder / "summary.json").read_text())
    assert result.summary["status"] == "ok"
    assert result.summary["steps"] == 6
    assert result.summary["params_sha256"] == "ab" * 32
    assert result.summary["inter_node_bytes_per_step"] == 1024  # two ranks of 512 on each node
    assert len((folder / "steps.csv").read_text().splitlines()) == 7
    assert (folder / "rank3.log").read_text() == "hello from rank 3\n"
    run = json.loads((folder / "run.json").read_text())
    assert run["plan_sha256"] == "feed"
    assert run["nodes"]["node1"]["congestion_control"] == "cubic"
    assert (tmp_path / "runs/latest").resolve() == folder.resolve()
    assert not result.folder.is_running()
    assert [each.phase for each in notes.phases if each.finished] == [
        "start",
        "no_network",
        "train",
        "finish",
    ]
    assert notes.events == [f"begin {result.folder.run_id}", "end"]


def test_each_rank_is_told_who_and_where_it_is(make_lab: Any, tmp_path: Path) -> None:
    spec = job("ok", placement=[1, 0, 0, 1])
    result = run_it(make_lab(), tmp_path / "runs", spec)
    told = [header["argument"] for header in headers(result)]
    assert [each["local_rank"] for each in told] == [0, 0, 1, 1]
    assert [each["node_name"] for each in told] == ["node1", "node0", "node0", "node1"]
    assert [each["listen_fd"] is not None for each in told] == [True, False, False, False]
    assert len({(each["master_addr"], each["master_port"]) for each in told}) == 1
    environment = [header["environment"] for header in headers(result)]
    assert [each["RANK"] for each in environment] == ["0", "1", "2", "3"]
    assert [each["DDPLAB_NODE"] for each in environment] == ["node1", "node0", "node0", "node1"]


def test_a_placement_that_does_not_fit_leaves_nothing(make_lab: Any, tmp_path: Path) -> None:
    with pytest.raises(JobSpecError, match="placement"):
        run_it(make_lab(), tmp_path / "runs", job("ok", placement=[0, 1]))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("killed", "rank 1 (node0) was killed by SIGKILL, after train step 2"),
        ("failed", "rank 1 (node0): bucket 1: parameter w was not used"),
        ("silent", "rank 1 (node0) ended with exit status 7"),
        ("leaves", "rank 1 (node0) ended without finishing"),
    ],
)
def test_the_first_cause_is_named_and_all_records_kept(
    make_lab: Any, tmp_path: Path, name: str, words: str
) -> None:
    lab = make_lab()
    spec = job(name, train={"steps": 5000})  # the others would go on for long
    result = run_it(lab, tmp_path / "runs", spec)
    assert isinstance(result.error, RunFailed)
    assert words in result.error.message
    assert result.summary["status"] == "failed"
    assert words in result.summary["error"]["message"]
    assert result.summary["steps"] == 2
    assert result.summary["loss_first"] == pytest.approx(4.015)
    assert result.summary["ranks_agree"] is None
    assert all(process.poll() is not None for process in lab.nodes.processes)


def test_the_last_words_of_a_rank_are_shown(make_lab: Any, tmp_path: Path) -> None:
    result = run_it(make_lab(), tmp_path / "runs", job("silent"))
    assert result.error is not None
    assert "the last words" in (result.error.seen or "")


def test_different_parameters_fail_the_run(make_lab: Any, tmp_path: Path) -> None:
    result = run_it(make_lab(), tmp_path / "runs", job("diverge"))
    assert result.error is not None
    assert "replicas differ" in result.error.message
    assert result.summary["ranks_agree"] is False
    assert result.summary["params_sha256"] is None


def test_different_parameters_are_fine_where_expected(make_lab: Any, tmp_path: Path) -> None:
    spec = job("diverge", ddp={"algorithm": "noop"}, expects_divergence=True)
    result = run_it(make_lab(), tmp_path / "runs", spec)
    assert result.error is None
    assert result.summary["status"] == "ok"
    assert result.summary["ranks_agree"] is False


def test_bytes_that_took_another_road_fail_the_run(make_lab: Any, tmp_path: Path) -> None:
    result = run_it(make_lab(), tmp_path / "runs", job("elsewhere"))
    assert result.error is not None
    assert "the fabric NICs counted fewer bytes than the ranks sent" in result.error.message
    assert result.summary["status"] == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_keeps_what_was_done(
    make_lab: Any, tmp_path: Path, number: signal.Signals
) -> None:
    def stop(phase: PhaseProgress) -> None:
        if phase.phase == "train" and phase.done == 3:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # an impatient person changes nothing

    before = signal.getsignal(number)
    spec = job("ok", train={"steps": 5000})
    result = run_it(make_lab(), tmp_path / "runs", spec, Notes(stop))
    assert isinstance(result.error, RunStopped)
    kept = result.summary["steps"]
    assert kept >= 3
    who = "you" if number == signal.SIGINT else "SIGTERM"
    assert result.error.message == (
        f"stopped by {who} at step {kept + 1}; {kept} steps kept in runs/latest; "
        "the lab is still up"
    )
    assert result.summary["error"]["kind"] == "stopped"
    assert signal.getsignal(number) == before


def test_what_a_rank_started_ends_with_the_job(make_lab: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def stop_soon() -> None:
        deadline = time.monotonic() + 20
        while not list(runs.glob("*crowd*/child")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop_soon).start()
    result = run_it(make_lab(), runs, job("crowd", train={"steps": 5000}))
    assert isinstance(result.error, RunStopped)
    child = int((result.folder.path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_node_that_is_lost_is_named(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()

    def lose(phase: PhaseProgress) -> None:
        if phase.phase == "train" and phase.done == 3:
            lab.nodes.processes[1].kill()

    result = run_it(lab, tmp_path / "runs", job("ok", train={"steps": 5000}), Notes(lose))
    assert result.error is not None
    assert result.error.message == ("node1 (ranks 2, 3) is gone: its agent was killed by SIGKILL")


def lose_all(lab: Lab, how: Callable[[], None]) -> Callable[[PhaseProgress], None]:
    """What the end of a lab looks like from here, at the third step."""

    def lose(phase: PhaseProgress) -> None:
        if phase.phase == "train" and phase.done == 3:
            how()
            for process in lab.nodes.processes:  # type: ignore[attr-defined]
                process.kill()

    return lose


def test_nodes_that_are_lost_while_the_lab_stays_are_named(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    notes = Notes(lose_all(lab, lambda: None))
    result = run_it(lab, tmp_path / "runs", job("ok", train={"steps": 5000}), notes)
    assert result.error is not None
    assert "is gone: its agent was killed by SIGKILL" in result.error.message


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_lab_that_ended_is_the_cause(make_lab: Any, tmp_path: Path, num_nodes: int) -> None:
    lab = make_lab(num_nodes)

    def end() -> None:
        lab.nodes.alive = False

    notes = Notes(lose_all(lab, end))
    result = run_it(lab, tmp_path / "runs", job("ok", train={"steps": 5000}), notes)
    assert result.error is not None
    assert result.error.message.startswith("the lab is gone")


def test_a_lab_that_was_taken_down_is_the_cause(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    notes = Notes(lose_all(lab, LabDirectory.of("default").tell_user_it_ends))
    result = run_it(lab, tmp_path / "runs", job("ok", train={"steps": 5000}), notes)
    assert result.error is not None
    assert result.error.message == "the lab was taken down while the job ran"


def test_a_lab_runs_one_job_at_a_time(make_lab: Any, tmp_path: Path) -> None:
    lab, told = make_lab(), []

    def second(phase: PhaseProgress) -> None:
        if phase.phase == "train" and phase.done == 3:
            with pytest.raises(LabBusy) as caught:
                run_it(lab, tmp_path / "others", job("ok"))
            told.append(str(caught.value))

    result = run_it(lab, tmp_path / "runs", job("ok"), Notes(second))
    assert result.error is None
    assert f"run {result.folder.run_id} (process {os.getpid()})" in told[0]
    assert not (tmp_path / "others").exists()
    assert run_it(lab, tmp_path / "runs", job("ok")).error is None


def test_a_program_that_cannot_be_imported_is_named(make_lab: Any, tmp_path: Path) -> None:
    program = Program("nowhere:main", ("nowhere",))
    result = launch(job("ok"), make_lab(1, 1), tmp_path / "runs", Notes(), program)
    assert result.error is not None
    assert "cannot import nowhere" in result.error.message


def test_a_fault_of_the_launcher_keeps_what_was_done(make_lab: Any, tmp_path: Path) -> None:
    def nobody_reads(phase: PhaseProgress) -> None:
        if phase.phase == "train" and phase.done == 3:
            raise SystemExit(1)  # what the terminal library does when its reader is gone

    lab = make_lab()
    with pytest.raises(SystemExit):
        run_it(lab, tmp_path / "runs", job("ok", train={"steps": 5000}), Notes(nobody_reads))
    summary = json.loads((tmp_path / "runs/latest/summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["steps"] >= 3
    assert all(process.poll() is not None for process in lab.nodes.processes)
