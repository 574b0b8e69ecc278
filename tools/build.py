"""Builds one environment in the folder it will stay in: venv, torch, the other packages, ddplab.

Says what it does, how large it is and how long it took; everything pip says is in .venvs/setup.log.
Does not decide when, and does not put the result into use (tools/environment.py does).
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path

from tools.commands import Attempt, Log, Step, without_password
from tools.environment import LAYERS, Choice, Made, sources, write
from tools.errors import CommandError, FrontDoorError
from tools.prerequisites import find

TORCH_INDEX_URL = "https://download.pytorch.org/whl/cpu"
TORCH_SIZE = "about 190 MB"
"""PyTorch's CPU wheel for x86-64 (docs/troubleshooting.md); pip names the exact size later."""

_PACKAGES_MB = {"run": 30, "ray": 110, "dev": 140}

_TORCH_SECTION = re.compile(r"^# torch.*?(?=^# |\Z)", re.MULTILINE | re.DOTALL)
_NOT_COMPILED = (
    r"/(tests?|networkx|setuptools|pip)/|/torch/(testing/_internal|onnx|_inductor|ao)/"
    r"|/ray/(rllib|serve|tune|train|data|llm|dashboard)/"
)
_REQUIREMENTS = """\
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    document = tomllib.load(file)
project = document["project"]
print(*project["dependencies"], *document["build-system"]["requires"], sep="\\n")
for extra in sys.argv[1:]:
    print(*project["optional-dependencies"][extra], sep="\\n")
"""


def build(root: Path, environment: Path, layer: str, choice: Choice) -> None:
    """Build it whole, or raise FrontDoorError; the caller removes what a failure leaves."""
    began_s = time.monotonic()
    interpreter = find(choice.python)
    attempts = torch_attempts(choice, pinned_torch(root))
    log = Log(environment.parent / "setup.log")
    _announce(choice, layer)
    try:
        python = str(environment / "bin" / "python")
        with Step("python", log) as step:
            step.run([interpreter.path, "-I", "-m", "venv", str(environment)], cwd=root)
            step.done(f"{interpreter.version}, {interpreter.path}")
        made = Made(
            choice,
            layer,
            str(root.resolve()),
            ".".join(interpreter.version.split(".")[:2]),
            sources(root),
        )
        _install(root, environment, python, made, attempts, log)
        write(environment, made)
    except CommandError as failure:
        raise _explained(failure, attempts, log) from failure
    sys.stderr.write(f"  made in {time.monotonic() - began_s:.0f} s\n\n")


def _install(
    root: Path, environment: Path, python: str, made: Made, attempts: list[Attempt], log: Log
) -> None:
    constraints = environment / "constraints.txt"
    pins = made.sources[1].decode("utf-8")
    if made.choice.torch or made.choice.torch_index_url:
        pins = _TORCH_SECTION.sub("", pins)
    constraints.write_text(pins, "utf-8")
    pip = [python, "-I", "-m", "pip", "install", "--no-input", "--no-color"]
    pip += ["--disable-pip-version-check", "--progress-bar=off", "--no-compile"]
    with Step("torch", log) as step:
        step.first_that_works(
            [[*pip, "--no-deps", *a.options(), a.requirement] for a in attempts], cwd=root
        )
        step.done("installed")
    with Step("packages", log) as step:
        wanted = step.run([python, "-I", "-c", _REQUIREMENTS, *LAYERS[made.layer]], cwd=root)
        step.run([*pip, "--constraint", str(constraints), *wanted], cwd=root)
        step.done(f"{step.num_installed} more installed")
    with Step("ddplab", log) as step:
        step.run([*pip, "--no-deps", "--no-build-isolation", "--editable", "."], cwd=root)
        step.done("this checkout, editable")
    with Step("compile", log) as step:
        compiling = [python, "-I", "-m", "compileall", "-q", "-j0", f"-x={_NOT_COMPILED}"]
        with suppress(CommandError):  # some packages carry files for other Pythons
            step.run([*compiling, str(environment / "lib")], cwd=root)
        step.done("so that every start is a quick one")


def pinned_torch(root: Path) -> str:
    """The one place that says which torch: its line in constraints.txt."""
    for line in (root / "constraints.txt").read_text("utf-8").splitlines():
        if line.startswith("torch=="):
            return line.strip()
    raise AssertionError("constraints.txt pins no torch")


def torch_attempts(choice: Choice, pinned: str) -> list[Attempt]:
    """Where torch is asked for, in order. What a person chose is taken from there or not at all."""
    if choice.torch and not re.match(r"torch\b(?![-\w])|[^-].*\.whl$", choice.torch):
        raise FrontDoorError(
            "TORCH is no requirement that pip knows.",
            seen=f"TORCH={choice.torch}",
            rule="torch with a version, or the path or address of a wheel",
            fix="make setup TORCH=torch==2.12.0        (TORCH=default: the one pinned here)",
        )
    if choice.torch:
        return [Attempt(choice.torch, choice.torch_index_url)]
    if choice.torch_index_url:
        any_build = pinned.partition("+")[0]
        return [Attempt(name, choice.torch_index_url) for name in (pinned, any_build)]
    return [Attempt(pinned, ""), Attempt(pinned, TORCH_INDEX_URL)]


def _announce(choice: Choice, layer: str) -> None:
    default = not (choice.torch or choice.torch_index_url)
    size = f"PyTorch for CPU, {TORCH_SIZE}" if default else "the PyTorch you chose (CUDA: some GB)"
    tools = f"other packages, about {_PACKAGES_MB[layer]} MB"
    sys.stderr.write(
        "ddplab: making the environment, once: about a minute, and the time to download\n"
        f"        {size}, and {tools} (less where pip has them);\n"
        "        1 GB on the disk, all of it in .venvs\n"
    )


def _explained(failure: CommandError, attempts: list[Attempt], log: Log) -> FrontDoorError:
    text = "\n".join(failure.last_lines)
    places = ", else from ".join(a.index_url or "pip's own sources" for a in attempts)
    rule = "pip finds every package of pyproject.toml, as pinned in constraints.txt"
    fix = "what the log says; then: make setup"
    if failure.label == "torch":
        rule = f"{attempts[0].requirement} comes from {places}"
        fix = "behind a mirror: make setup TORCH_INDEX_URL=...; another build: make setup TORCH=..."
    if "No space left" in text:
        fix = "free about 2 GB here and in the temporary folder (TMPDIR=... moves that one)"
    elif re.search(r"NewConnectionError|ConnectTimeout|ame resolution|timed out", text):
        fix = f"check the network and pip's settings (pip config list)\n{fix}"
    return FrontDoorError(
        f"the environment could not be made: {failure.label} failed.",
        seen=text,
        rule=without_password(rule),
        fix=f"{fix}\nall of it is in {log.path.parent.name}/{log.path.name}",
        note="Nothing half-built was kept.    docs/troubleshooting.md#pytorch-does-not-come",
    )
