"""A checkout in a folder with a space in its name, and a stub Python that installs nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.environment import Choice, Made, sources, version, write

ROOT = Path(__file__).parents[2]

STUB_PYTHON = """\
#!/bin/sh
exec {real} -I -S {answers} "$0" "$@"
"""

# Plays the system's Python, and the one of the environment it makes; hands the rest to a real one.
STUB_ANSWERS = """\
import json, os, shutil, sys, time
from pathlib import Path
real, me, words = {real!r}, Path(sys.argv[1]), sys.argv[2:]
if words[:2] == ["-I", "-c"] and "_base_executable" in words[2]:
    print(me)
    print("3.11.9")
elif words[:3] == ["-I", "-m", "venv"]:
    (Path(words[3]) / "bin").mkdir(parents=True)
    shutil.copy(me, Path(words[3]) / "bin" / "python")
    shutil.copy({program!r}, Path(words[3]) / "bin" / "ddplab")
elif words[:3] == ["-I", "-m", "pip"]:
    with open({pip_log!r}, "a") as log:
        print(json.dumps(words[3:]), file=log)
    if any(os.environ.get("STUB_HOLDS", "(no such word)") in word for word in words):
        time.sleep(60)
    if any(os.environ.get("STUB_FAILS", "(no such word)") in word for word in words) and not (
        os.environ.get("STUB_EXCEPT", "(no such word)") in " ".join(words)
    ):
        print("ERROR: No matching distribution found")
        sys.exit(1)
elif words[:3] != ["-I", "-m", "compileall"]:
    os.execv(real, [real, *words])
"""

# Plays `ddplab`: says how it was called.
PROGRAM = """\
import json, os, sys, time
words = sys.argv[1:]
with open({calls!r}, "a") as log:
    print(json.dumps({{"words": words, "environment": dict(os.environ)}}), file=log)
if "--lab=busy" in words:
    time.sleep(60)
sys.exit(3 if "--lab=bad" in words else 0)
"""


class Checkout:
    """A copy of the front door with make, a stub Python on the path, and what they did."""

    def __init__(self, root: Path, outside: Path) -> None:
        self.root = root
        self.outside = outside
        self.started: list[subprocess.Popen[str]] = []
        root.mkdir()
        for name in ("Makefile", "constraints.txt"):
            shutil.copy(ROOT / name, root / name)
        shutil.copytree(ROOT / "tools", root / "tools")
        for package in ("cluster", "jobs"):
            (root / package / "catalog").mkdir(parents=True)
            for name in ("hier", "ring"):
                (root / package / "catalog" / f"{name}.yaml").write_text("{}\n")
        (root / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["setuptools>=77"]\n'
            '[project]\nname = "ddplab"\ndependencies = ["click>=8.1", "torch>=2.6"]\n'
            "[project.optional-dependencies]\n"
            'server = ["uvicorn>=0.34"]\ndocker = ["docker>=7"]\ndev = ["pytest>=8"]\n'
            'ray = ["ray>=2.40"]\ngpu = ["nvidia-ml-py>=12"]\n'
        )
        self._make_stub()

    def _make_stub(self) -> None:
        answers = self.outside / "answers.py"
        program = self.outside / "program.py"
        answers.write_text(
            STUB_ANSWERS.format(
                real=sys.executable, program=str(program), pip_log=str(self.outside / "pip.jsonl")
            )
        )
        program.write_text(PROGRAM.format(calls=str(self.outside / "calls.jsonl")))
        stub = self.outside / "python3"
        stub.write_text(STUB_PYTHON.format(real=f"'{sys.executable}'", answers=f"'{answers}'"))
        stub.chmod(0o755)

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        makes = ("MAKE", "MFLAGS", "DDPLAB")
        own = {name: text for name, text in os.environ.items() if not name.startswith(makes)}
        return {**own, "PATH": f"{self.outside}:{os.environ['PATH']}", **extra}

    def make(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """`make WORDS` in the checkout, with further environment variables."""
        return subprocess.run(
            ["make", *words],
            cwd=self.root,
            env=self.environment(extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self, *words: str, **extra: str) -> subprocess.Popen[str]:
        """The same in the background, in a process group of its own; the fixture ends it."""
        process = subprocess.Popen(
            ["make", *words],
            cwd=self.root,
            env=self.environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def calls(self) -> list[list[str]]:
        """The arguments of every call of `ddplab`."""
        return [call["words"] for call in self._read("calls.jsonl")]

    def called_with_environment(self) -> dict[str, str]:
        """The environment of the last call of `ddplab`."""
        environment: dict[str, str] = self._read("calls.jsonl")[-1]["environment"]
        return environment

    def pip(self) -> list[list[str]]:
        """The arguments of every call of pip."""
        return self._read("pip.jsonl")

    def environments(self) -> list[str]:
        """The names of the folders in .venvs, finished or not."""
        return sorted(e.name for e in (self.root / ".venvs").glob("*") if e.is_dir())

    def _read(self, name: str) -> list[Any]:
        path = self.outside / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    """A checkout without an environment."""
    outside = tmp_path / "outside"
    outside.mkdir()
    made = Checkout(tmp_path / "my lab", outside)
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate()


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    """A checkout with a finished environment, whose `ddplab` only says how it was called."""
    environment = checkout.root / ".venvs" / "1"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(checkout.outside / "program.py", environment / "bin" / "ddplab")
    made = Made(Choice(), "run", str(checkout.root.resolve()), version(), sources(checkout.root))
    write(environment, made)
    (checkout.root / ".venv").symlink_to(Path(".venvs") / "1")
    return checkout
