"""`make lessons`: runs every lesson's jobs and prints the tables of docs/lessons.md.

Owns which jobs show a lesson, and which of their figures. Makes a lab of its own and takes it down;
needs some minutes and a machine that does nothing else. All of it is in runs/lessons.json too.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cluster.lab import bring_up
from cluster.nodes import Making
from cluster.spec import load_cluster
from jobs.modelwords import num_reductions
from tools.benchmarks import BACKEND, take_down_if_up
from tools.timing import machine

LAB = "lessons"
CLUSTER, RATE = "2x2", "200mbit"
RUNS = Path("runs")
FILE = RUNS / "lessons.json"


@dataclass(frozen=True)
class Shown:
    """A job that was run: its summary.json, and its run.json."""

    summary: Mapping[str, Any]
    run: Mapping[str, Any]


@dataclass(frozen=True)
class Try:
    """A job of a lesson, with keys that are set."""

    job: str
    sets: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What a person types behind `make run`."""
        return f"`JOB={self.job}`" + (f' `SET="{" ".join(self.sets)}"`' if self.sets else "")


@dataclass(frozen=True)
class Lesson:
    """`columns` are the names of what is shown of each job."""

    title: str
    tries: tuple[Try, ...]
    columns: tuple[str, ...]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f}"


def _megabytes(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 1e6:.2f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.0f} %"


def _waiting_share(shown: Shown) -> float | None:
    step_s = shown.summary["step_seconds"]["mean"]
    return shown.summary["phase_seconds"]["comm_exposed"] / step_s if step_s else None


def _replicas(shown: Shown) -> str:
    agree = shown.summary["ranks_agree"]
    return "-" if agree is None else "equal on all ranks" if agree else "differ between ranks"


def _passes(shown: Shown) -> str:
    order = shown.summary["data_order"]
    if order["repeats"] is None:
        return str(order["epochs"] or "-")
    return f"{order['epochs']}, each in {'the same' if order['repeats'] else 'another'} order"


def _end(shown: Shown) -> str:
    error = shown.summary["error"]
    return f"fails: {error['message']}" if error else "comes to its end"


def _reductions(shown: Shown) -> str:
    plan = shown.run["plan"]
    return str(len(plan["buckets"]) * num_reductions(shown.run["job"])) if plan else "-"


STEP, WAIT, SHARE = "step, ms", "of it waiting, ms", "waiting, share of the step"
ALONE, HIDDEN = "computing alone, ms", "communication hidden"
SENT, TIMES = "the busiest node sends, MB a step", "buckets reduced a step"
REPLICAS, PASSES, END = "parameters at the end", "passes over the text", "how it ends"

COLUMNS: dict[str, Callable[[Shown], str]] = {
    STEP: lambda it: _milliseconds(it.summary["step_seconds"]["mean"]),
    ALONE: lambda it: _milliseconds(it.summary["baseline_step_seconds"]["median"]),
    WAIT: lambda it: _milliseconds(it.summary["phase_seconds"]["comm_exposed"]),
    SHARE: lambda it: _percent(_waiting_share(it)),
    HIDDEN: lambda it: _percent(it.summary["overlap_ratio"]),
    SENT: lambda it: _megabytes(it.summary["inter_node_bytes_per_step"]),
    TIMES: _reductions,
    REPLICAS: _replicas,
    PASSES: _passes,
    END: _end,
}

DEADLOCK = ("ddp.lesson_deadlock=true", "ddp.timeout_s=5")

LESSONS = (
    Lesson(
        "Buckets: one reduction for many tensors",
        (Try("deep"), Try("per-parameter")),
        (TIMES, SENT, STEP, ALONE, WAIT),
    ),
    Lesson(
        "Overlap: sending while backward still computes",
        (Try("hier"), Try("no-overlap")),
        (STEP, ALONE, WAIT, HIDDEN),
    ),
    Lesson(
        "Accumulation, and forgetting no_sync",
        (Try("accumulate"), Try("accumulate-every")),
        (TIMES, SENT, STEP, ALONE, WAIT),
    ),
    Lesson(
        "Unused parameters",
        (Try("unused"), Try("unused", DEADLOCK), Try("unused-flagged")),
        (END, REPLICAS),
    ),
    Lesson(
        "A barrier is no reduction",
        (Try("hier"), Try("barrier-only"), Try("noop")),
        (SENT, STEP, WAIT, REPLICAS),
    ),
    Lesson(
        "Batch size and the share of communication",
        (Try("batch-1"), Try("batch-16"), Try("batch-256")),
        (SENT, STEP, ALONE, WAIT, SHARE),
    ),
    Lesson(
        "The order of the data",
        (Try("forgot-set-epoch"), Try("forgot-set-epoch", ("data.set_epoch=true",))),
        (PASSES,),
    ),
    Lesson("Batch norms keep buffers", (Try("resnet-bn"),), (REPLICAS, STEP, SENT)),
    Lesson(
        "A star has a root",
        (Try("star"), Try("ring"), Try("hier")),
        (SENT, STEP, ALONE, WAIT),
    ),
)


def main() -> None:
    print(f"Measured {date.today()}: {machine()}; {CLUSTER} at {RATE}. By `make lessons`.")
    found: dict[Try, Shown] = {}
    try:
        take_down_if_up(LAB)
        bring_up(load_cluster(CLUSTER, RATE), LAB, Making(BACKEND))
        for lesson in LESSONS:
            for each in lesson.tries:
                found[each] = found.get(each) or run(each)
            print("\n".join(["", f"## {lesson.title}", "", *table(lesson, found)]), flush=True)
    finally:
        take_down_if_up(LAB)
    FILE.write_text(json.dumps(document(found), indent=1))
    print(f"\nThe same as JSON: {FILE}")


def run(it: Try) -> Shown:
    """Runs a job as a person does. SystemExit where it leaves no summary."""
    sets = [f"--set={setting}" for setting in it.sets]
    command = [sys.executable, "-m", "jobs.cli", "run", it.job, "--lab", LAB, "--json", *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = json.loads(done.stdout) if done.stdout else {}
    if "run_id" not in summary:
        raise SystemExit(f"ddplab run {it.job}: {done.stdout}{done.stderr}")
    return Shown(summary, json.loads((RUNS / summary["run_id"] / "run.json").read_text()))


def table(lesson: Lesson, found: Mapping[Try, Shown]) -> Iterator[str]:
    """A row for each job, in the order of the lesson."""
    yield _row(["`make run` ...", *lesson.columns])
    yield "|---" * (1 + len(lesson.columns)) + "|"
    for each in lesson.tries:
        yield _row([each.words, *(COLUMNS[name](found[each]) for name in lesson.columns)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def document(found: Mapping[Try, Shown]) -> dict[str, Any]:
    """Every summary, by lesson."""
    return {
        "schema": 1,
        "measured": str(date.today()),
        "machine": machine(),
        "lab": {"cluster": CLUSTER, "rate": RATE, "backend": BACKEND},
        "lessons": [
            {
                "title": lesson.title,
                "runs": [
                    {"job": each.job, "sets": list(each.sets), "summary": found[each].summary}
                    for each in lesson.tries
                ],
            }
            for lesson in LESSONS
        ],
    }


if __name__ == "__main__":
    main()
