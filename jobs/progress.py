"""How far a job is, from what its ranks tell: phases, their time, and who is behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PHASES = ("start", "warm_up", "no_network", "train", "finish")


@dataclass(frozen=True)
class PhaseProgress:
    """One phase: units done by every rank, of how many, and the time spent in it so far.

    `loss` and `step_s` are means over the ranks' last reports; None where there are none.
    """

    phase: str
    done: int
    total: int
    elapsed_s: float
    first_loss: float | None
    loss: float | None
    step_s: float | None

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

    `last_s` is when those who are furthest behind last got on.
    """

    num_ranks: int
    started_s: float
    last_s: float = field(init=False)
    _reports: dict[int, list[tuple[str, int]]] = field(init=False)
    _told: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    _elapsed_s: dict[str, float] = field(default_factory=dict)
    _first_loss: float | None = None
    _until_s: float = field(init=False)
    _least: int = 0

    def __post_init__(self) -> None:
        self.last_s = self._until_s = self.started_s
        self._reports = {rank: [] for rank in range(self.num_ranks)}

    def take(self, rank: int, report: Mapping[str, Any], now_s: float) -> PhaseProgress | None:
        """The phase's progress when this report was the last rank's for its unit, else None.

        The time since the unit before belongs to the phase that was reported.
        """
        phase, done = str(report["phase"]), int(report["done"])
        self._reports[rank].append((phase, done))
        least = min(len(reports) for reports in self._reports.values())
        if least > self._least:  # others that still get on do not hide one that does not
            self._least, self.last_s = least, now_s
        told = self._told.setdefault((phase, done), {})
        told[rank] = report
        if len(told) < self.num_ranks:
            return None
        self._elapsed_s[phase] = self._elapsed_s.get(phase, 0.0) + now_s - self._until_s
        self._until_s = now_s
        loss = _mean(told, "loss")
        if phase == "train" and self._first_loss is None:
            self._first_loss = loss
        return PhaseProgress(
            phase=phase,
            done=done,
            total=int(report["total"]),
            elapsed_s=self._elapsed_s[phase],
            first_loss=self._first_loss,
            loss=loss,
            step_s=_mean(told, "step_s"),
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
        phase, done = reports[-1]
        return f"after {phase.replace('_', '-')} step {done}" if phase in STEPPED else f"at {phase}"

    def started(self) -> bool:
        """Whether every rank has reported at all."""
        return all(self._reports.values())

    def train_steps(self) -> int:
        """Training steps that every rank has finished."""
        return max(
            (
                done
                for (phase, done), told in self._told.items()
                if phase == "train" and len(told) == self.num_ranks
            ),
            default=0,
        )


STEPPED = ("warm_up", "no_network", "train")


def _mean(told: Mapping[int, Mapping[str, Any]], key: str) -> float | None:
    values = [report.get(key) for report in told.values()]
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
