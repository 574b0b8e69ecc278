"""Runs jobs at each size of a plan, every size in its place, and keeps what that gave.

Owns the order of things and their end: a size that fails or is stopped ends the whole, its place is
left, and what earlier sizes gave is in files already. What figures mean is `arithmetic`'s.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.errors import ClusterError
from cluster.lab import LabEvent
from jobs.conclude import RunResult
from jobs.errors import JobError, LaunchError, RunFailed, RunStopped
from jobs.launch import Observer
from jobs.rankplan import Program
from jobs.rounds.launcher import TURNS, take_turns
from jobs.runinfo import num_cores
from jobs.scale.files import ScaleFiles
from jobs.scale.places import LABEL, Places
from jobs.scale.plan import ScalePlan, Size
from jobs.scale.rows import ScaleRow, scale_rows
from jobs.stopping import raising_stop_signals, who_stopped

_LAB_COMMAND = re.compile(
    r"make cluster-up (?:(?:CLUSTER|LAB)=\S+ )*(?=(?:RATE|PRIVILEGE|BACKEND)=)"
)


class ScaleObserver(Observer, Protocol):
    """Whoever shows the sizes while they go."""

    def size(self, size: Size) -> None:
        """A size begins."""

    def lab(self, event: LabEvent) -> None:
        """The lab of this size is coming up."""

    def size_done(self, size: Size, rows: Sequence[ScaleRow]) -> None:
        """All jobs have run at this size. `rows`: those of this size."""


@dataclass(frozen=True)
class ScaleResult:
    """The rows of all sizes that were done. `error` tells why there are not more.

    `files` is None where no size was done.
    """

    rows: Sequence[ScaleRow]
    files: ScaleFiles | None
    error: JobError | None


@dataclass(frozen=True)
class Turns:
    """How the jobs take turns at each size."""

    rounds: int
    turn_steps: int
    program: Program = TURNS


def scale(
    plan: ScalePlan, places: Places, turns: Turns, runs: Path, observer: ScaleObserver
) -> ScaleResult:
    """Runs everything; a failure is in the result, not raised."""
    found: dict[Size, Sequence[RunResult]] = {}
    files: ScaleFiles | None = None
    rows: list[ScaleRow] = []
    error: JobError | None = None
    with raising_stop_signals():
        places.clear()
        for size in plan.sizes:
            observer.size(size)
            try:
                found[size] = _run_size(plan, size, places, turns, runs, observer)
            except KeyboardInterrupt as exc:
                error = _at(size, RunStopped(f"stopped by {who_stopped(exc)}"), places)
            except (ClusterError, JobError) as exc:
                error = _at(size, exc, places)
            rows = scale_rows(plan, found, num_cores())
            if rows:
                files = files or ScaleFiles.create(plan, turns.rounds, turns.turn_steps, runs)
                files.write(rows, error, complete=set(found) == set(plan.sizes))
            if error:
                break
            observer.size_done(size, [row for row in rows if row.size == size])
    return ScaleResult(rows, files, error)


def _run_size(
    plan: ScalePlan,
    size: Size,
    places: Places,
    turns: Turns,
    runs: Path,
    observer: ScaleObserver,
) -> Sequence[RunResult]:
    """The runs of one size, all of which did what was asked; else raises why not."""
    with places.at(size, plan.cluster_at(size), observer.lab) as site:
        taken = take_turns(
            plan.jobs_at(size),
            site,
            runs,
            observer,
            rounds=turns.rounds,
            turn_steps=turns.turn_steps,
            label=LABEL,
            program=turns.program,
        )
    error = taken.error or _changed_links(taken.results)
    if error:
        raise error
    return taken.results


def _changed_links(results: Sequence[RunResult]) -> JobError | None:
    if not any(result.run.get("link_changes") for result in results):
        return None
    return RunFailed(
        "links of its lab were changed while its jobs ran",
        rule="all counted steps of a size have the links that were asked for",
        fix="run it again, and leave its labs alone meanwhile",
    )


def _at(size: Size, error: ClusterError | JobError, places: Places) -> JobError:
    """The error of one size, which names it; what others say of the lab does not hold here."""
    if isinstance(error, RunStopped):
        who = re.match(r"stopped by \S+", error.message)
        return RunStopped(
            f"{who[0] if who else error.message} at size {size}; {places.after_a_stop}"
        )
    kind = type(error) if isinstance(error, JobError) else LaunchError
    return kind(f"size {size}: {error.message}", error.rule, _fix_here(error.fix), seen=error.seen)


def _fix_here(fixes: Sequence[str]) -> list[str]:
    """Labs are made by us here: of a command that makes one, its options can be typed alone."""
    ours = [_LAB_COMMAND.sub("", fix) for fix in fixes]
    return [fix for fix in ours if "make cluster-" not in fix]
