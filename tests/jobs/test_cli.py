"""The command line: the verbs about runs, and what those who mistype are told."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.verbs import VERBS
from tests.jobs.command import call, valid

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("own_folder")


def write_job(name: str, **more: str) -> str:
    path = Path("my-job.yaml")
    lines = [
        f"name: {name}",
        "train: {steps: 6}",
        *(f"{key}: {text}" for key, text in more.items()),
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_help_lists_every_verb_and_imports_none() -> None:
    code = (
        "import sys\nfrom jobs.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'pydantic', 'rich', 'yaml', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for verb, (_, line) in VERBS.items():
        assert f"  {verb} " in done.stdout
        assert line in done.stdout


def test_no_verb_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys)
    assert (code, out) == (2, "")
    assert all(verb in err for verb in VERBS)


def test_ctrl_c_while_modules_are_imported_shows_no_traceback() -> None:
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from jobs.cli import main\n"
        "main(['runs'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


SHELL = f"PYTHONPATH={ROOT} {sys.executable} -P -m jobs.cli"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (f"{SHELL} runs >&-", 0, ""),
        (f"{SHELL} runs <&- >&- 2>&-", 0, ""),
        (f"{SHELL} status --lab nowhere >&- 2>&-", 1, ""),
        (f"{SHELL} runs >/dev/full", 1, "standard output: No space left"),
        (f"{SHELL} runs --json >/dev/full", 1, "standard output: No space left"),
        (f"mkdir gone; cd gone; rmdir ../gone; {SHELL} runs", 2, "the folder you are in is gone"),
    ],
)
def test_streams_and_folders_that_are_not_there(line: str, code: int, words: str) -> None:
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    code, out, _ = call(capsys, verb, "--help")
    assert code == 0
    assert "--json" in out


@pytest.mark.usefixtures("lab")
def test_run_prints_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "run", write_job("ok"), "--json")
    assert code == 0, err
    summary = valid(out, "run")
    assert summary["status"] == "ok"
    assert summary["steps"] == 6
    assert summary["link"]["proof"] == "probed"
    assert "train" in err  # progress is there, but not on standard output


@pytest.mark.usefixtures("lab")
def test_run_closes_with_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "run", write_job("ok"), "--steps", "4", "--rate", "200mbit")
    assert (code, err) == (0, "")
    assert 'Job "ok"' in out
    assert "STEP   10.0 ms" in out
    assert "Bottleneck: the link between nodes" in out
    assert "runs/latest = runs/" in out


@pytest.mark.usefixtures("lab")
def test_a_failed_run_satisfies_both_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "run", write_job("killed"), "--json")
    assert code == 1
    summary = valid(out, "run")
    valid(out, "error")
    assert "rank 1 (node0) was killed by SIGKILL" in summary["error"]["message"]


@pytest.mark.usefixtures("lab")
def test_a_failed_run_tells_people_where_its_files_are(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "run", write_job("failed"))
    assert code == 1
    assert "ddplab: rank 1 (node0): bucket 1: parameter w was not used" in err
    assert "files   runs/latest = runs/" in err


@pytest.mark.usefixtures("lab")
def test_a_rate_the_lab_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "run", "hier", "--rate", "50mbit")
    assert code == 1
    assert 'ddplab: RATE=50mbit, but lab "default" runs at 200mbit.' in err
    assert "make link NODE=all RATE=50mbit && make run JOB=hier" in " ".join(err.split())
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "kind", "fix"),
    [
        (["run", "hire"], "bad_job", "JOB=hier"),
        (["rnu", "hier"], "usage", "ddplab run"),
        (["run", "hier", "--stesp", "3"], "usage", "ddplab run --steps"),
        (["run", "hier", "--steps", "many"], "usage", "ddplab run --help"),
        (["run"], "usage", "ddplab run --help"),
        (["run", "hier", "--data", " "], "bad_data", "leave DATA out"),
        (["runs-clean"], "usage", "ddplab runs-clean --help"),
        (["runs-clean", "--keep", "-2"], "bad_records", "KEEP=10"),
        (["run", "hier"], "no_lab", "make cluster-up"),
        (["status", "--lab", "mine"], "no_lab", "make cluster-up LAB=mine"),
        (["probe"], "no_lab", "make cluster-up"),
        (["down"], "no_lab", "make cluster-up"),
    ],
)
def test_errors_satisfy_the_contract(
    capsys: pytest.CaptureFixture[str], words: list[str], kind: str, fix: str
) -> None:
    code, out, err = call(capsys, *words, "--json")
    assert code == (2 if kind == "usage" else 1)
    assert err == ""
    error = valid(out, "error")["error"]
    assert error["kind"] == kind
    assert fix in error["fix"]
    assert not Path("runs").exists()
    code, out, err = call(capsys, *words)  # and the same to people
    assert code != 0
    assert out == ""
    assert err.startswith("ddplab: ")
    assert fix in err


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["train.stpes=3"], "steps"),
        (["train.steps=0"], "train.steps"),
        (["train.lr=1e-3"], "train.lr"),
        (["ddp.algorithm=hierarchcal"], "hierarchical"),
        (["ddp.overlap=on"], "ddp.overlap"),
        (["train.steps"], "key=value"),
        (["ddp.timeout_s=12:30", "train.seed=-1"], "train.seed"),
    ],
)
@pytest.mark.usefixtures("lab")
def test_bad_settings_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], sets: list[str], words: str
) -> None:
    options = [word for each in sets for word in ("--set", each)]
    code, out, _ = call(capsys, "run", "hier", *options, "--json")
    assert code == 1
    assert words in valid(out, "error")["error"]["message"] + str(json.loads(out)["error"]["fix"])
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("content", "words"), [(None, "not found"), (b"", "empty"), (b"short", "at least")]
)
@pytest.mark.usefixtures("lab")
def test_data_is_looked_at_before_anything_starts(
    capsys: pytest.CaptureFixture[str], content: bytes | None, words: str
) -> None:
    if content is not None:
        Path("data.txt").write_bytes(content)
    code, out, _ = call(capsys, "run", "hier", "--data", "data.txt", "--json")
    assert code == 1
    error = valid(out, "error")["error"]
    assert error["kind"] == "bad_data"
    assert words in error["message"]
    assert not Path("runs").exists()


def test_print_config_needs_no_lab(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "hierarchical", "--print-config", "--steps", "7", "--data", "10:30", "--json"]
    code, out, _ = call(capsys, *words)
    config = json.loads(out)
    assert code == 0
    assert config["name"] == "hier"  # a job answers to its algorithm's name
    assert config["train"]["steps"] == 7
    assert config["data"]["path"] == str(Path("10:30").absolute())
    code, out, _ = call(capsys, "run", "ring", "--print-config", "--set", "train.steps=7")
    assert code == 0
    Path("printed.yaml").write_text(out)
    code, again, _ = call(capsys, "run", "printed.yaml", "--print-config")
    assert again == out


@pytest.mark.usefixtures("lab")
def test_runs_are_listed_and_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "runs")
    assert (code, out) == (0, "No runs yet.    next    make run JOB=hier\n")
    call(capsys, "run", write_job("ok"), "--json")
    call(capsys, "run", write_job("killed"), "--json")
    _, out, _ = call(capsys, "runs", "--json")
    assert [row["state"] for row in json.loads(out)["runs"]] == ["ok", "failed"]
    _, out, _ = call(capsys, "runs")
    assert out.count("-2x2-200mbit") == 2
    code, out, _ = call(capsys, "runs-clean", "--keep", "1", "--json")
    assert code == 0
    assert len(json.loads(out)["removed"]) == len(json.loads(out)["kept"]) == 1
    _, out, _ = call(capsys, "runs-clean", "--keep", "0")
    assert "1 removed, 0 kept" in out
    assert list(Path("runs").iterdir()) == []
