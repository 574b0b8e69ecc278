"""A lab of its own for a live test: made, used and taken down by the command people use."""

import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.lab import open_lab
from cluster.nodes import Nodes
from jobs.verbs import run_command

ROOT = Path(__file__).parents[2]
SMALL = ("model.layers=2", "model.width=64", "pace=null")
"""A model small enough for eight ranks on two cores."""


@dataclass(frozen=True)
class TestLab:
    """Runs the command with a state folder and a runs folder that nobody else uses."""

    __test__ = False
    name: str
    home: Path

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.home / "state"), "PYTHONPATH": str(ROOT)}

    def argv(self, *words: str) -> list[str]:
        """How the command is called."""
        return [sys.executable, "-m", "jobs.cli", *words]

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """The command as a process of its own session, so that a test can kill it alone."""
        return subprocess.Popen(
            self.argv(*words),
            cwd=self.home,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """The command inside this process, which saves its start."""
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            warnings.catch_warnings(),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            warnings.simplefilter("ignore", ResourceWarning)  # what it started outlives it
            for name, value in self.environment().items():
                patch.setenv(name, value)
            patch.chdir(self.home)
            code = run_command(list(words))
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def process(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """The command as it is typed, to its end."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=110)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def nodes(self) -> Nodes:
        """Its nodes, in which programs can be started."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", self.environment()["XDG_RUNTIME_DIR"])
            return open_lab(self.name).nodes

    def in_node(self, node: str, *argv: str) -> str:
        """What a command prints inside a node."""
        nodes = self.nodes()
        (found,) = [it for it in nodes.list() if it.name == node]
        process = nodes.exec(found, argv)
        assert process.stdin and process.stdout and process.stderr
        with process.stdin, process.stdout, process.stderr:
            process.stdin.close()
            text = process.stdout.read().decode().strip()
            assert process.wait(10) == 0, process.stderr.read()
        return text

    def run(self, job: str, *sets: str, ok: bool = True) -> dict[str, Any]:
        """Runs a job with `--json` and returns its summary."""
        options = [word for setting in sets for word in ("--set", setting)]
        done = self.command("run", job, "--lab", self.name, "--json", *options)
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    def records(self, run_id: str) -> list[list[dict[str, Any]]]:
        """Every line of every rank's record file, ranks ascending."""
        files = sorted((self.runs / run_id).glob("rank*.jsonl"), key=lambda p: int(p.stem[4:]))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    def steps(self, run_id: str) -> list[list[dict[str, Any]]]:
        """Only the measured steps of every rank."""
        return [[r for r in rank if r["kind"] == "step"] for rank in self.records(run_id)]


@contextmanager
def lab(home: Path, cluster: str, *options: str) -> Iterator[TestLab]:
    """A lab that is up; it is taken down also when the test fails.

    Where this machine was too busy to carry what was asked, it is tried once more.
    """
    (home / "state").mkdir(mode=0o700, parents=True, exist_ok=True)
    it = TestLab(f"t{Path(cluster).stem}", home)
    words = ("up", "--lab", it.name, "--cluster", cluster, "--backend", "netns", *options)
    done = it.command(*words)
    if "this machine carried only" in done.stderr:
        done = it.command(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield it
    finally:
        it.command("down", "--lab", it.name)
