"""The verb scale: what it prints for people and under --json, and what it refuses."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import jobs.scale.sizes
from cluster.errors import ProbeFailed
from tests.jobs.command import call, valid
from tests.jobs.conftest import MakeLab
from tests.jobs.samples import flat
from tests.jobs.scale_labs import STAND_IN, Labs, stand_in_labs

pytestmark = pytest.mark.usefixtures("own_folder")
WORDS = ("scale", "ring", "hier", "--backend", "netns", "--rounds", "2", "--steps", "3")


@pytest.fixture
def labs(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> Labs:
    take_turns = jobs.scale.sizes.take_turns

    def stood_in(*arguments: Any, **options: Any) -> Any:
        return take_turns(*arguments, **{**options, "program": STAND_IN})

    monkeypatch.setattr(jobs.scale.sizes, "take_turns", stood_in)
    return stand_in_labs(make_lab, monkeypatch)


def test_scale_prints_the_contract(capsys: pytest.CaptureFixture[str], labs: Labs) -> None:
    code, out, err = call(capsys, *WORDS, "--nodes", "1", "--json")
    assert code == 0, err
    document = valid(out, "scale")
    assert [each["job"] for each in document["jobs"]] == ["ring", "hier"]
    assert document["sizes"] == [[1, 1], [1, 2]]
    assert "Weak scaling of ring, hier" in err
    assert "1x2       2 ranks" in err
    (files,) = Path("runs").glob("*/scale.json")
    assert json.loads(files.read_text()) == document
    assert labs.up == []


def test_the_table_goes_with_the_last_of_its_runs(
    capsys: pytest.CaptureFixture[str], labs: Labs
) -> None:
    del labs
    assert call(capsys, *WORDS, "--nodes", "1", "--json")[0] == 0
    assert call(capsys, "runs-clean", "--keep", "1")[0] == 0
    assert len(list(Path("runs").glob("*/scale.json"))) == 1
    code, out, _ = call(capsys, "runs-clean", "--keep", "0")
    assert code == 0
    assert "-scale-2x2-200mbit" in out
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize("columns", ["80", "100", "120"])
def test_scale_prints_a_table(
    capsys: pytest.CaptureFixture[str],
    labs: Labs,
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    del labs
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = call(capsys, *WORDS, "--nodes", "2 1", "--scaling", "strong")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= int(columns)
    assert "Efficiency at 2x2:" in out
    same = 'make scale JOBS="ring hier" NODES="2 1" '
    turns = "ROUNDS=2 STEPS=3 BACKEND=netns"
    commands = flat(out.replace(" \\\n", ""))
    assert f"{same}SCALING=strong {turns} RATE=1gbit {same}SCALING=weak {turns} files" in commands
    (folder,) = (path.parent.name for path in Path("runs").glob("*/scale.csv"))
    assert f"files   runs/{folder}: scale.csv, scale.json" in out


def test_what_was_typed_is_typed_again(
    capsys: pytest.CaptureFixture[str], labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    del labs
    monkeypatch.setenv("COLUMNS", "120")
    Path("my text.txt").write_bytes(bytes(range(256)) * 40)
    typed = ("--nodes", "1", "--rate", "100mbit", "--privilege", "none", "--data", "my text.txt")
    sets = ("--set", "train.lr=0.1", "--set", "ddp.overlap=false")
    code, out, err = call(capsys, *WORDS, *typed, *sets)
    assert (code, err) == (0, "")
    words = (
        'make scale JOBS="ring hier" NODES=1 RATE={rate} {scaling}SET="train.lr=0.1 '
        'ddp.overlap=false" DATA="my text.txt" ROUNDS=2 STEPS=3 BACKEND=netns PRIVILEGE=none'
    )
    commands = flat(out.replace(" \\\n", ""))
    assert words.format(rate="1gbit", scaling="") in commands
    assert words.format(rate="100mbit", scaling="") + " SCALING=strong" in commands


def test_a_failure_shows_what_there_is_and_why_not_more(
    capsys: pytest.CaptureFixture[str], labs: Labs
) -> None:
    labs.fail_at["2x2"] = ProbeFailed("too fast for this machine", "a rule", "RATE=1mbit")
    code, out, err = call(capsys, *WORDS, "--nodes", "1 2")
    assert code == 1
    assert "Efficiency at 1x2" in out
    assert "next    " not in out
    assert flat(err).startswith("ddplab: size 2x2: too fast for this machine")
    assert "RATE=1mbit" in err
    code, out, _ = call(capsys, *WORDS, "--nodes", "1 2", "--json")
    assert code == 1
    valid(out, "error")
    assert valid(out, "scale")["complete"] is False


def test_nothing_at_all_is_an_error_alone(capsys: pytest.CaptureFixture[str], labs: Labs) -> None:
    labs.fail_at["1x1"] = KeyboardInterrupt()
    code, out, err = call(capsys, *WORDS, "--nodes", "1")
    assert code == 128 + signal.SIGINT
    assert "stopped by you at size 1x1" in err
    assert "effi-" not in out
    code, out, _ = call(capsys, *WORDS, "--nodes", "1", "--json")
    assert code == 128 + signal.SIGINT
    assert valid(out, "error")["error"]["kind"] == "stopped"


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        (["scale", "--nodes", "1"], "usage", "ddplab scale --help"),
        (["scale", "ring"], "usage", "ddplab scale --help"),
        (["scale", "rnig", "--nodes", "1"], "bad_job", "JOB=ring"),
        (["scale", "ring", "--nodes", "x"], "bad_job", 'NODES="1 2 4"'),
        (["scale", "ring", "ring", "--nodes", "1"], "bad_job", 'JOBS="ring hier"'),
        (["scale", "ring", "--nodes", "1", "--scaling", "s"], "bad_job", "SCALING=strong"),
        (["scale", "ring", "--nodes", "3", "--scaling", "strong"], "bad_job", "2 nodes instead"),
        (["scale", "ring", "--nodes", "1", "--rounds", "0"], "usage", "ddplab scale --help"),
        (["scale", "ring", "--nodes", "1", "--steps", "-1"], "usage", "ddplab scale --help"),
        (["scale", "ring", "--nodes", "1", "--cluster", "3x"], "cluster_error", "2x2"),
        (["scale", "ring", "--nodes", "1", "--backend", "nets"], "cluster_error", "netns"),
        (["scale", "ring", "--nodes", "1", "--data", "gone.txt"], "bad_data", ""),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(
    capsys: pytest.CaptureFixture[str], words: list[str], kind: str, told: str
) -> None:
    code, out, err = call(capsys, *words, "--json")
    assert code == (2 if kind == "usage" else 1)
    assert err == ""
    error = valid(out, "error")["error"]
    assert error["kind"] == kind
    assert told in error["message"] + (error["fix"] or "")
    assert not Path("runs").exists()


def test_data_must_do_for_the_largest_size(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.txt").write_bytes(bytes(range(256)) * 10)  # windows for 2 ranks, not for 32
    words = ["scale", "ring", "--nodes", "1 16", "--data", "data.txt", "--json"]
    code, out, _ = call(capsys, *words)
    assert code == 1
    assert valid(out, "error")["error"]["kind"] == "bad_data"
