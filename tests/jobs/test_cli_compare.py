"""The verb compare: what it prints for people and under --json, what it refuses, how it ends."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import jobs.rounds.launcher
from cluster.lab import Lab
from jobs.linkchanges import LinkChanges
from tests.jobs.command import call, valid
from tests.jobs.rounds.test_launcher import TURNS
from tests.jobs.samples import flat

pytestmark = pytest.mark.usefixtures("own_folder")
Capture = pytest.CaptureFixture[str]
SHORT = ("--rounds", "2", "--steps", "3")
KILLED = "name: killed\nddp: {algorithm: ring}\npace: {forward_ms: 60, backward_ms: 120}\n"


@pytest.fixture(autouse=True)
def _stood_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that take turns are stood in for, on a lab of this machine's own processes."""
    del lab
    take_turns = jobs.rounds.launcher.take_turns

    def stood_in(*arguments: Any, **options: Any) -> Any:
        return take_turns(*arguments, **options, program=TURNS)

    monkeypatch.setattr(jobs.rounds.launcher, "take_turns", stood_in)


def compared(capsys: Capture, *words: str, code: int = 0) -> dict[str, Any]:
    """The document of a comparison under --json, which is compare.json as well."""
    found, out, err = call(capsys, "compare", *words, "--json")
    assert found == code, out + err
    document = valid(out, "compare")
    kept = Path("runs") / document["folder"] / "compare.json"
    assert json.loads(kept.read_text()) == document
    return document


def folders() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir() if not path.is_symlink())


def test_json_is_the_summaries_in_the_order_asked(capsys: Capture) -> None:
    found = compared(capsys, "native", "ring", "hier", *SHORT)
    assert [each["job"] for each in found["jobs"]] == ["native", "ring", "hier"]
    assert found["labels"] == ["native", "ring", "hier"]
    assert found["base"] == "native"
    assert found["took_turns"] is True
    assert (found["turns"]["rounds"], found["turns"]["steps_per_turn"]) == (2, 3)
    assert [row["step_seconds"]["n"] for row in found["rows"]] == [6] * 3
    ratios = {row["label"]: row["speed_up"] for row in found["rows"]}
    assert ratios["native"] == {"value": 1.0, "low": None, "high": None}
    assert ratios["hier"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert found["no_network"]["no network"]["n"] == 60
    assert found["losses"]["apart"] == 0.0
    assert found["error"] is None


def test_csv_has_a_line_for_each_row(capsys: Capture) -> None:
    found = compared(capsys, "ring", "hier", *SHORT)
    lines = (Path("runs") / found["folder"] / "compare.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    assert [row["job"] for row in rows] == ["ring", "hier", "no network"]
    assert [row["base"] for row in rows] == ["ring"] * 3
    assert float(rows[1]["step_mean_s"]) == pytest.approx(0.014)
    assert (rows[1]["speed_up"], rows[1]["speed_up_low"]) == ("1.0", "1.0")
    assert (rows[0]["speed_up"], rows[0]["speed_up_low"]) == ("1.0", "")
    assert float(rows[2]["step_mean_s"]) == pytest.approx(0.008)


@pytest.mark.parametrize("columns", ["80", "100", "120"])
def test_the_screen(capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = call(capsys, "compare", "ring", "hier", *SHORT)
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= int(columns)
    words = flat(out)
    assert "Same model, data, seed and batch: byte-GPT" in words
    assert "2 rounds; in each the jobs take turns, 3 counted steps a turn. About" in words
    assert "start 4 ranks" in words
    assert "round 1/2 6 steps" in words
    assert "round 2/2 6 steps" in words
    assert "ring and hier cannot be told apart here" in words
    (bundle,) = [name for name in folders() if "-compare-2x2-" in name]
    assert f"files runs/{bundle}: compare.csv, compare.json" in words


def test_finished_runs_are_compared_without_running_again(capsys: Capture) -> None:
    first = compared(capsys, "ring", "hier", *SHORT)
    before = folders()
    ids = [each["run_id"] for each in first["jobs"]]
    again = compared(capsys, "--runs", f"runs/{ids[1]}/ {ids[0]}", "--base", "ring")
    assert [each["run_id"] for each in again["jobs"]] == [ids[1], ids[0]]
    assert again["base"] == "ring"
    assert again["took_turns"] is True
    of_bundle = compared(capsys, "--runs", first["folder"], "--base", "hier")
    assert [each["run_id"] for each in of_bundle["jobs"]] == ids
    assert len(folders()) == len(before) + 2


def test_a_run_and_the_latest_may_be_named(capsys: Capture) -> None:
    ids = [each["run_id"] for each in compared(capsys, "ring", "hier", *SHORT)["jobs"]]
    found = compared(capsys, "--runs", f"{ids[0]} latest")
    assert [each["run_id"] for each in found["jobs"]] == ids


def test_runs_of_the_same_job_have_rows_of_their_own(capsys: Capture) -> None:
    found = compared(capsys, "ring", "ring", "--base", "ring-2", *SHORT)
    assert found["labels"] == ["ring", "ring-2"]
    assert found["base"] == "ring-2"


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        ((), "compare has nothing to compare", 'JOBS="ring hier"'),
        (("ring",), "compare has ring alone to compare", 'JOBS="ring hier"'),
        (("--runs", "latest", "ring"), "RUNS together with JOBS", "leave RUNS out"),
        (("--runs", "latest", "--steps", "3"), "RUNS together with STEPS", "leave RUNS out"),
        (("--runs", "latest", "--lab", "a"), "RUNS together with LAB", "leave RUNS out"),
        (("ring", "hier", "--base", "noop"), "BASE=noop", "BASE=ring"),
        (("ring", "hier", "--set", "train.steps=3"), "train.steps is no setting", "STEPS=20"),
        (("ring", "hier", "--rounds", "0"), "0 is not in the range", "compare --help"),
        (
            ("ring", "hier", "--rounds", "1", "--max-slowdown", "5%"),
            "MAX_SLOWDOWN with ROUNDS=1",
            "ROUNDS=3",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    capsys: Capture, words: tuple[str, ...], message: str, fix: str
) -> None:
    code, out, err = call(capsys, "compare", *words)
    assert code == 2, out
    assert message in flat(err)
    assert fix in flat(err)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ring", "hierr"), "job 'hierr': unknown"),
        (("ring", "hier", "--max-slowdown", "5"), "MAX_SLOWDOWN=5"),
        (("ring", "hier", "--rate", "50mbit"), "RATE=50mbit, but lab"),
        (("ring", "hier", "--data", "nowhere"), "nowhere"),
        (("--runs", "one two"), "one: no run of this folder's runs/"),
    ],
)
def test_what_cannot_be_done_is_refused(
    capsys: Capture, words: tuple[str, ...], message: str
) -> None:
    code, out, err = call(capsys, "compare", *words)
    assert code == 1, out
    assert message in flat(err)
    assert not Path("runs").exists()


def test_what_is_not_the_same_training_is_refused_unless_told(capsys: Capture) -> None:
    Path("mine.yaml").write_text("name: mine\nddp: {algorithm: ring}\ntrain: {seed: 1}\n")
    code, _, err = call(capsys, "compare", "ring", "mine.yaml", *SHORT)
    assert code == 1
    assert "ring, mine: not the same training" in err
    assert "train.seed: 0 in ring, 1 in mine" in err
    assert not Path("runs").exists()
    code, out, _ = call(capsys, "compare", "ring", "mine.yaml", *SHORT, "--allow-different")
    assert code == 0
    assert "NOT the same training: train.seed: 0 in ring, 1 in mine" in out
    assert "no network, mine" in out


def test_a_job_that_is_slower_by_more_fails_the_command(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared(capsys, "ring", "hier", *SHORT, "--max-slowdown", "0%")["error"] is None
    run_id = next(name for name in folders() if "-hier-" in name)
    for file in (Path("runs") / run_id).glob("rank*.jsonl"):
        slow = file.read_text().replace('"step_s":0.014', '"step_s":0.0154')
        assert slow != file.read_text()
        file.write_text(slow)
    names = " ".join(name for name in folders() if "-hier-" in name or "-ring-" in name)
    found = compared(capsys, "--runs", names, "--base", "ring", "--max-slowdown", "5%", code=1)
    assert found["error"]["message"].startswith("hier is 10.0% slower than ring")
    (gate,) = found["max_slowdown"]["gates"]
    assert (gate["label"], gate["verdict"]) == ("hier", "slower")
    monkeypatch.setenv("COLUMNS", "80")
    words = ("compare", "--runs", names, "--base", "ring", "--max-slowdown")
    code, out, err = call(capsys, *words, "5%")
    assert code == 1
    assert "MORE than the limit, 5.0 %" in flat(out)
    assert "ddplab: hier is 10.0% slower than ring" in err
    assert call(capsys, *words, "11%")[0] == 0


def test_one_job_that_fails_ends_the_comparison(capsys: Capture) -> None:
    Path("killed.yaml").write_text(KILLED)
    sets = ("--set", "model.layers=4", *SHORT)
    code, out, err = call(capsys, "compare", "ring", "killed.yaml", *sets)
    assert code == 1
    assert "rank 1 (node0) was killed by SIGKILL, after train step 1 of killed" in flat(err)
    kept = [name for name in folders() if "-compare-2x2-" not in name]
    assert all(f"runs/{name}" in flat(err) for name in kept)
    assert "times as fast" not in out
    (bundle,) = Path("runs").glob("*/compare.json")
    document = json.loads(bundle.read_text())
    assert document["error"]["message"].startswith("rank 1 (node0) was killed")
    assert [each["status"] for each in document["jobs"]] == ["failed", "failed"]
    code, _, err = call(capsys, "compare", "--runs", " ".join(kept))
    assert code == 1
    assert "not a run that came to its end" in flat(err)


def test_a_failure_under_json_is_told_with_the_summaries(capsys: Capture) -> None:
    Path("killed.yaml").write_text(KILLED)
    code, out, _ = call(capsys, "compare", "ring", "killed.yaml", *SHORT, "--json")
    assert code == 1
    document = json.loads(out)
    assert document["error"]["kind"] == "run_failed"
    assert [each["job"] for each in document["jobs"]] == ["ring", "killed"]


def test_a_stop_ends_it_in_order(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs.report.compare_live import LiveTurns

    progress = LiveTurns.progress

    def stop(self: LiveTurns, phase: Any, ranks: Any) -> None:
        progress(self, phase, ranks)
        if phase.phase == "train":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(LiveTurns, "progress", stop)
    Path("hang.yaml").write_text(KILLED.replace("killed", "hang"))
    code, _, err = call(capsys, "compare", "hang.yaml", "ring", *SHORT)
    assert code == 130
    assert "stopped by you" in err


def test_a_bundle_goes_with_its_runs(capsys: Capture) -> None:
    compared(capsys, "ring", "hier", *SHORT)
    code, out, _ = call(capsys, "runs-clean", "--keep", "0")
    assert code == 0
    assert out.count("removed  runs/") == 3
    assert folders() == []


def test_help_names_every_option(capsys: Capture) -> None:
    code, out, _ = call(capsys, "compare", "--help")
    assert code == 0
    for option in ("--runs", "--base", "--max-slowdown", "--rounds", "--allow-different"):
        assert option in out


def test_links_that_were_changed_meanwhile_make_it_no_comparison(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"t_ns": 1, "settled_ns": 2, "wall_ns": 3, "node": "node1", "direction": "out"}
    change = {**entry, "configured_bits_per_second": 50_000_000}

    def keep(_changes: LinkChanges, runs: Any) -> tuple[()]:
        for _folder, run in runs:
            run["link_changes"] = [change]
        return ()

    monkeypatch.setattr(LinkChanges, "keep", keep)
    code, out, err = call(capsys, "compare", "ring", "hier", *SHORT)
    assert code == 1
    assert "links: changed while ring went on" in err
    assert "times as fast" not in out
    code, out, _ = call(capsys, "compare", "ring", "hier", *SHORT, "--allow-different")
    assert code == 0
    assert "NOT the same training: links: changed while hier went on" in out
