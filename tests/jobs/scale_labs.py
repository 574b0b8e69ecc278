"""Labs that scale makes in tests: this machine's own processes, and jobs that are stood in for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import jobs.scale.places
from cluster.errors import NoLab
from cluster.lab import Lab, LabEvent
from cluster.nodes import Making
from cluster.state import LabDirectory
from jobs.rankplan import Program

STAND_IN = Program("turns_stand_in:main", ("turns_stand_in",))


class Labs:
    """Labs of this machine's own processes; `up` are those that are, `had` all there were."""

    def __init__(self, make_lab: Callable[..., Lab]) -> None:
        self._make_lab = make_lab
        self.up: list[str] = []
        self.had: list[str] = []
        self.fail_at: dict[str, BaseException] = {}

    def bring_up(
        self, spec: Any, name: str, making: Making, *, on_event: Any, lasting: bool
    ) -> Lab:
        assert (making.backend, making.privilege, lasting) == ("netns", "none", False)
        on_event(LabEvent("start"))
        if spec.name in self.fail_at:
            raise self.fail_at[spec.name]
        made: Lab = self._make_lab(spec.nodes, spec.ranks_per_node)
        LabDirectory.of(name).path.mkdir(mode=0o700, exist_ok=True)
        self.up.append(name)
        self.had.append(name)
        on_event(LabEvent("start", 0.1))
        return replace(made, name=name, spec=spec)

    def take_down(self, name: str) -> None:
        if name not in self.up:
            raise NoLab(f"{name} is not up")
        self.up.remove(name)


def stand_in_labs(make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> Labs:
    """What scale makes instead of labs until the test has ended."""
    made = Labs(make_lab)
    monkeypatch.setattr(type(make_lab().nodes), "down", lambda _nodes: None)
    monkeypatch.setattr(jobs.scale.places, "bring_up", made.bring_up)
    monkeypatch.setattr(jobs.scale.places, "take_down", made.take_down)
    return made
