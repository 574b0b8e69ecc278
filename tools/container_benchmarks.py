"""The part of `make benchmarks` about labs of containers: how fast, and whether they agree.

Both backends have a lab at the same time; one job has a turn on each, several times over.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jobs.runinfo import PROJECT
from tools.timing import ddplab, first_step_s, row

BACKENDS = ("compose", "netns")
TURNS = 5
UP_REPEATS = 3
PACED = ("--set", "model.kind=paced", "--set", "pace=null", "--steps", "30")
TEXT = PROJECT / "README.md"
"""The usual text is that of the Python that runs, which may be another one in a container."""
SAME = ("plan_sha256", "params_sha256", "inter_node_bytes_per_step")


def container_lines(name: str) -> Iterator[str]:
    """How long the commands take with containers, their image being there."""
    times: dict[tuple[str, str], list[float]] = {}

    def add(what: str, target: str, seconds: float) -> None:
        times.setdefault((what, target), []).append(seconds)

    where = ("--backend", "compose", "--lab", name, "--no-probe")
    for _ in range(UP_REPEATS):
        for cluster, target in (("2x2", "5 s"), ("4x2", "8 s")):
            up_s = ddplab("up", "--cluster", cluster, *where)
            add(f"`cluster-up BACKEND=compose` of {cluster} without the probe", target, up_s)
            if cluster == "2x2":
                with TemporaryDirectory(dir=Path.cwd() / "runs") as folder:
                    Path(folder).chmod(0o755)  # ranks do not run as root
                    first_s = first_step_s(folder, name)
                add("`make run JOB=hier` to its first step", "12 s", first_s)
            add(f"`cluster-down` of {cluster}", "12 s", ddplab("down", "--lab", name))
    for (what, target), seconds in times.items():
        yield row(what, target, seconds)


def agreement_lines(name: str) -> Iterator[str]:
    """The same job on both backends in turn: medians of a step, and what must be equal."""
    labs = {backend: f"{name}-{backend}" for backend in BACKENDS}
    steps: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    same: dict[str, set[Any]] = {key: set() for key in SAME}
    try:
        for backend, lab in labs.items():
            ddplab("up", "--backend", backend, "--lab", lab)
        for _ in range(TURNS):
            for backend, lab in labs.items():
                summary = run(lab)
                steps[backend].append(summary["step_seconds"]["median"])
                for key in SAME:
                    same[key].add(summary[key])
    finally:
        for lab in labs.values():
            subprocess.run([sys.executable, "-m", "jobs.cli", "down", "--lab", lab], check=False)
    for backend, seconds in steps.items():
        words = ", ".join(f"{each * 1e3:.0f}" for each in seconds)
        yield f"| {backend} | {statistics.median(seconds) * 1e3:.0f}; {words} |"
    pairs = zip(steps["compose"], steps["netns"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    yield f"| compose / netns, turn by turn | {ratio:.3f} (target: 0.95 to 1.05) |"
    for key, values in same.items():
        yield f"| `{key}` | {'equal in all' if len(values) == 1 else 'NOT EQUAL'} |"


def run(lab: str) -> dict[str, Any]:
    """The summary of a run of the job whose computing only sleeps."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jobs.cli",
            "run",
            "hier",
            "--lab",
            lab,
            "--json",
            *PACED,
            f"--data={TEXT}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"ddplab run on lab {lab}: {done.stderr}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary
