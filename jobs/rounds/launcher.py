"""Several jobs that take turns within one set of ranks, so that whatever drifts hits all alike.

Owns the launcher's side. What a rank does in its turns is `rank`, who goes when
`order`.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster.site import Site
from jobs.conclude import RunResult
from jobs.errors import JobError, JobSpecError
from jobs.launch import Observer, Part, Task, plan_ranks, run_ranks
from jobs.rankplan import Program, RankPlan
from jobs.spec import JobSpec

ROUNDS, TURN_STEPS = 3, 10
TURNS = Program("jobs.rounds.rank:main", ("torch", "jobs.rounds.rank"))


@dataclass(frozen=True)
class TurnsResult:
    """The runs in the order asked. `error` is the first cause for which any of them failed."""

    results: list[RunResult]
    group: str
    rounds: int
    turn_steps: int

    @property
    def error(self) -> JobError | None:
        return next((result.error for result in self.results if result.error), None)


def take_turns(
    jobs: Sequence[JobSpec],
    site: Site,
    runs: Path,
    observer: Observer,
    *,
    rounds: int = ROUNDS,
    turn_steps: int = TURN_STEPS,
    label: str = "compare",
    group: str | None = None,
    program: Program = TURNS,
) -> TurnsResult:
    """Runs all jobs, each in a run folder of its own; in every round each has one turn.

    A turn is one step that is not counted and `turn_steps` that are. If one job or rank fails, all
    fail with the first cause, which is in the results; what was recorded stays. Raises JobError or
    ClusterError when there is nothing to keep.
    """
    plans = [plan_ranks(_with_steps(job, rounds * turn_steps), site) for job in jobs]
    _check_places(plans)
    group = group or _new_group(label)
    turns = {"group": group, "rounds": rounds, "steps_per_turn": turn_steps}

    def argument(first: Mapping[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
        return {
            "rank": first,
            "jobs": [_job(part) for part in parts],
            "rounds": rounds,
            "turn_steps": turn_steps,
        }

    what = f"{label} of {', '.join(job.name for job in jobs)}"
    task = Task(program, what, [f"{label}-{job.name}" for job in jobs], {"turns": turns}, argument)
    results = run_ranks(plans, task, site, runs, observer)
    return TurnsResult(results, group, rounds, turn_steps)


def _new_group(label: str) -> str:
    """What runs that took turns have in common, and no others: compare-20261130-1109-3f2a1c."""
    return f"{label}-{datetime.now().astimezone():%Y%m%d-%H%M}-{secrets.token_hex(3)}"


def _with_steps(job: JobSpec, steps: int) -> JobSpec:
    return job.model_copy(update={"train": job.train.model_copy(update={"steps": steps})})


def _job(part: Part) -> dict[str, Any]:
    return {
        "run_dir": part.run_dir,
        "run_id": part.folder.run_id,
        "job": part.plan.job.model_dump(mode="json"),
    }


def _check_places(plans: Sequence[RankPlan]) -> None:
    """Raises JobSpecError where jobs put the same rank on different nodes."""
    first = plans[0]
    for plan in plans[1:]:
        if plan.node_of != first.node_of:
            raise JobSpecError(
                f"{plan.job.name} has placement {plan.job.placement}, {first.job.name} "
                f"{first.job.placement}",
                rule="jobs that take turns share one set of ranks, so each rank has one node",
                fix='SET="placement=contiguous", and ring_order for rings in another order',
            )
