"""MAX_SLOWDOWN: by how much a job may be slower than the base, before a comparison fails."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.compare.comparison import Comparison, Row
from jobs.errors import CompareError, RunFailed

Verdict = Literal["within", "unsure", "slower"]


@dataclass(frozen=True)
class Gate:
    """How much slower than the base a job is: as measured, at least and at most, in shares."""

    label: str
    slowdown: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True)
class GateResult:
    """The limit as it was asked for, and what was found of each job."""

    limit: float
    gates: Sequence[Gate]


def parse_limit(text: str) -> float:
    """`5%` is 0.05. Raises CompareError for what says no share."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if not found:
        raise CompareError(
            f"MAX_SLOWDOWN={text}",
            rule="says how much slower than the base a job may be, in percent",
            fix="MAX_SLOWDOWN=5%",
        )
    return float(found[1]) / 100


def gates(comparison: Comparison, limit: float) -> list[Gate]:
    """One for each job but the base. Raises CompareError where there was one round only."""
    rows = [row for row in comparison.rows if row.it.label != comparison.base]
    return [_gate(row, limit) for row in rows]


def _gate(row: Row, limit: float) -> Gate:
    ratio = row.speed_up
    if ratio.low is None or ratio.high is None:
        raise CompareError(
            f"MAX_SLOWDOWN with one round of {row.it.label}",
            rule="noise is told from a slowdown by several rounds",
            fix="ROUNDS=3, or more steps where runs are compared",
        )
    slowdown, low, high = (1 / value - 1 for value in (ratio.value, ratio.high, ratio.low))
    beyond: Verdict = "slower" if low > limit else "unsure"
    return Gate(row.it.label, slowdown, low, high, beyond if slowdown > limit else "within")


def failed_gate(found: GateResult, base: str) -> RunFailed | None:
    """The error where a job is slower by more, beyond what noise explains."""
    slower = [gate for gate in found.gates if gate.verdict == "slower"]
    if not slower:
        return None
    return RunFailed(
        "; ".join(f"{gate.label} is {gate.slowdown:.1%} slower than {base}" for gate in slower),
        rule=f"MAX_SLOWDOWN={found.limit * 100:.4g}%",
        fix="look at what changed, or allow more: MAX_SLOWDOWN",
        seen="; ".join(
            f"{gate.label}: {gate.low:.1%} to {gate.high:.1%} with 95 % certainty"
            for gate in slower
        ),
    )
