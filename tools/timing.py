"""Times the command as a person waits for it, and names the machine; shared by the benchmarks."""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jobs.records import read_records, records_path
from jobs.runinfo import num_cores


def machine() -> str:
    """Cores, memory and kernel."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gib = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    cpu = names[0] if names else platform.machine()
    return f"{num_cores()} cores ({cpu}), {memory_gib:.0f} GiB, Linux {platform.release()}"


def ddplab(*words: str, cwd: str | None = None) -> float:
    """Seconds the command takes. SystemExit where it fails."""
    start_s = time.monotonic()
    _output(words, cwd)
    return time.monotonic() - start_s


def ddplab_json(*words: str) -> dict[str, Any]:
    """What the command answers under --json; its files are not kept. SystemExit where it fails."""
    with TemporaryDirectory() as folder:
        answer: dict[str, Any] = json.loads(_output((*words, "--json"), folder))
    return answer


def _output(words: Sequence[str], cwd: str | None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"ddplab {' '.join(words)}: {done.stderr}")
    return done.stdout


def first_step_s(folder: str, lab: str) -> float:
    """From the command to the start of the first training step, the warm-up's."""
    start_ns = time.monotonic_ns()
    ddplab("run", "hier", "--lab", lab, "--steps", "2", cwd=folder)
    header = read_records(records_path(Path(folder) / "runs" / "latest", 0)).header
    assert header is not None
    return float(header["monotonic_ns"] - start_ns) / 1e9


def row(what: str, target: str, seconds: Sequence[float]) -> str:
    """One line of a table: what was timed, what it should stay under, how long it took."""
    each = ", ".join(f"{it:.2f}" for it in seconds)
    return f"| {what} | under {target} | {statistics.median(seconds):.2f} s; {each} |"
