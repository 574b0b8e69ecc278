"""How far a job is, from what its ranks tell: phases, their time, and who is behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PHASES = ("start", "warm_up", "no_network", "train", "turn", "finish")


@dataclass(frozen=True)
class PhaseProgress:
    """One phase: units done by every rank, of how many, and the time spent in it so far.

    `loss` and `step_s` are means over the ranks' last reports; None where there are none. `job` is
    the number of the job, where several take turns.
    """

    phase: str
    done: int
    total: int
    elapsed_s: float
    first_loss: float | None
    loss: float | None
    step_s: float | None
    job: int = 0

    @property
    def finished(self) -> bool:
        return self.done >= self.total

    @property
    def remaining_s(self) -> float | None:
        """At the pace so far; None before the first unit is done."""
        return self.elapsed_s / self.done * (self.total - self.done) if self.done else None


@dataclass
class Progress:
    """Takes the phase messages of `num_ranks` ranks; started at `started_s` (monotonic).

    `last_s` is when those who are furthest behind last got on. `job_names` are needed where several
    jobs take turns, to tell which one a rank was at.
    """

    num_ranks: int
    started_s: float
    job_names: Sequence[str] = ()
    last_s: float = field(init=False)
    _reports: dict[int, list[tuple[int, str, int]]] = field(init=False)
    _told: dict[tuple[int, str, int], dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    _elapsed_s: dict[tuple[int, str], float] = field(default_factory=dict)
    _first_loss: dict[int, float | None] = field(default_factory=dict)
    _until_s: float = field(init=False)
    _least: int = 0

    def __post_init__(self) -> None:
        self.last_s = self._until_s = self.started_s
        self._reports = {rank: [] for rank in range(self.num_ranks)}

    def take(self, rank: int, report: Mapping[str, Any], now_s: float) -> PhaseProgress | None:
        """The phase's progress when this report was the last rank's for its unit, else None.

        The time since the unit before belongs to the phase that was reported.
        """
        job, phase, done = int(report.get("job", 0)), str(report["phase"]), int(report["done"])
        self._reports[rank].append((job, phase, done))
        least = min(len(reports) for reports in self._reports.values())
        if least > self._least:  # others that still get on do not hide one that does not
            self._least, self.last_s = least, now_s
        told = self._told.setdefault((job, phase, done), {})
        told[rank] = report
        if len(told) < self.num_ranks:
            return None
        elapsed_s = self._elapsed_s.get((job, phase), 0.0) + now_s - self._until_s
        self._elapsed_s[job, phase] = elapsed_s
        self._until_s = now_s
        loss = _mean(told, "loss")
        if phase == "train" and self._first_loss.get(job) is None:
            self._first_loss[job] = loss
        return PhaseProgress(
            phase=phase,
            done=done,
            total=int(report["total"]),
            elapsed_s=elapsed_s,
            first_loss=self._first_loss.get(job),
            loss=loss,
            step_s=_mean(told, "step_s"),
            job=job,
        )

    def behind(self) -> list[int]:
        """The ranks that have reported least."""
        least = min(len(reports) for reports in self._reports.values())
        return [rank for rank, reports in self._reports.items() if len(reports) == least]

    def place(self, rank: int) -> str:
        """Where a rank was last heard of, in words."""
        reports = self._reports[rank]
        if not reports:
            return "before its start"
        job, phase, done = reports[-1]
        of_job = f" of {self.job_names[job]}" if len(self.job_names) > 1 else ""
        if phase == "turn":
            return f"after turn {done}"
        words = (
            f"after {phase.replace('_', '-')} step {done}" if phase in STEPPED else f"at {phase}"
        )
        return words + of_job

    def started(self) -> bool:
        """Whether every rank has reported at all."""
        return all(self._reports.values())


STEPPED = ("warm_up", "no_network", "train")


def _mean(told: Mapping[int, Mapping[str, Any]], key: str) -> float | None:
    values = [report.get(key) for report in told.values()]
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
