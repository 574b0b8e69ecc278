"""A run whose links were changed while it went on, in parts: steps over the same limits.

Owns which step belongs to which part; one during which a limit changed belongs to none. What a
part comes to is said by figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from jobs.derive import StepFigures

Side = tuple[str, str]  # node, direction: out, in, inside


@dataclass(frozen=True)
class RunPart:
    """Steps without a change between them; `limits` in bits per second, None: not limited.

    `as_predicted` is true of steps before the first change: a prediction was made for their links.
    """

    steps: tuple[StepFigures, ...]
    limits: Mapping[Side, int | None]
    as_predicted: bool


def changed(steps: Sequence[StepFigures], run: Mapping[str, Any]) -> bool:
    """Whether a link was changed before the last of these steps was over. `run` is run.json."""
    changes = _changes(run)
    return bool(changes) and (not steps or changes[0].begun < steps[-1].end_ns)


def split(steps: Sequence[StepFigures], run: Mapping[str, Any]) -> tuple[RunPart, ...]:
    """The parts that have steps, in order; () where no link was changed."""
    if not changed(steps, run):
        return ()
    changes = _changes(run)
    limits = first_limits(run)
    parts = [_part(steps, -inf, changes[0].begun, limits, as_predicted=True)]
    for number, change in enumerate(changes):
        following = changes[number + 1].begun if number + 1 < len(changes) else inf
        limits = {**limits, **change.limits}
        parts.append(_part(steps, change.settled, following, limits, as_predicted=False))
    return tuple(part for part in parts if part.steps)


@dataclass(frozen=True)
class _Change:
    begun: float
    settled: float
    """Infinite where nobody knows when, or whether, it came to its end."""
    limits: Mapping[Side, int | None]


def _changes(run: Mapping[str, Any]) -> list[_Change]:
    """Entries of one command have the same time, and are one change."""
    by_time: dict[int, list[Mapping[str, Any]]] = {}
    for entry in run.get("link_changes", ()):
        by_time.setdefault(entry["t_ns"], []).append(entry)
    return [
        _Change(
            begun=begun,
            settled=inf if entries[0]["settled_ns"] is None else entries[0]["settled_ns"],
            limits={
                (entry["node"], entry["direction"]): entry["configured_bits_per_second"]
                for entry in entries
            },
        )
        for begun, entries in sorted(by_time.items())
    ]


def first_limits(run: Mapping[str, Any]) -> dict[Side, int | None]:
    """What the links were limited to as the run began."""
    limits: dict[Side, int | None] = {}
    for node in run["lab"]["nodes"]:
        name, rate = node["name"], node["rate_bits_per_s"]
        limits |= {(name, "out"): rate, (name, "in"): rate}
        limits[name, "inside"] = node.get("intra_rate_bits_per_s")
    return limits


def _part(
    steps: Sequence[StepFigures],
    since_ns: float,
    until_ns: float,
    limits: Mapping[Side, int | None],
    *,
    as_predicted: bool,
) -> RunPart:
    inside = (step for step in steps if since_ns <= step.start_ns and step.end_ns <= until_ns)
    return RunPart(tuple(inside), limits, as_predicted)
