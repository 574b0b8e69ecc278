"""A project that did not come up says why; what was begun is found by its directory alone."""

import json
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.compose import bringing, project
from cluster.compose.bringing import bring
from cluster.compose.engine import Engine
from cluster.compose.project import NOTE_FILE, Project
from cluster.errors import HostError
from cluster.nodes import Making
from cluster.spec import load_cluster

WHY = "failed to create network x: Error response from daemon: Pool overlaps with other one"
CLASH = 'Error response from daemon: Conflict. The container name "/x" is already in use'


class Tied(Project):
    """A project whose Compose ends with `status`, having said `lines`."""

    status = 1
    lines: tuple[str, ...] = ()

    def _run_tied(self, *_: object) -> int:
        return self.status

    def log_lines(self) -> list[str]:
        return list(self.lines)


def tied(directory: Path, status: int, *lines: str) -> Tied:
    engine = SimpleNamespace(environment={}, networks=lambda *_: [], remove=lambda *_: None)
    it = Tied(cast(Engine, engine), "ddplab-x", directory)
    it.status, it.lines = status, lines
    return it


@pytest.mark.parametrize(
    ("status", "lines", "seen"),
    [
        (1, ("Network x_fabric  Creating", "Network x_fabric  Error", WHY), WHY),
        (1, ("Container x  Starting", "Container x  Started", CLASH), CLASH),
        (1, ("Container x  Starting", "canceled"), "canceled"),
        (1, ("Container x  Starting",), "it said nothing"),
        (1, (), "it said nothing"),
        (-9, ("Container x  Starting",), "it was killed by SIGKILL"),
        (-15, (WHY,), "it was killed by SIGTERM"),
    ],
)
def test_what_compose_died_of_is_told_not_how_far_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, lines: tuple[str, ...], seen: str
) -> None:
    monkeypatch.setattr(project, "docker_command", lambda: "docker")
    filling: Any = SimpleNamespace(
        overlay=lambda: None, environment=dict, management=None, spec=load_cluster("2x2")
    )
    with pytest.raises(HostError, match="did not bring the nodes up") as caught:
        tied(tmp_path, status, *lines).bring_up(filling)
    assert caught.value.seen == seen


def test_a_subnet_that_was_asked_for_and_just_taken_is_told_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free as it was looked at, taken as Compose made it: who has it is looked up again."""
    it = tied(tmp_path, 1, "Network x_fabric  Error", WHY)
    pools = {"Config": [{"Subnet": "10.77.0.0/24"}]}
    looks = iter([[], [{"Name": "theirs", "IPAM": pools}]])
    engine = cast(Any, it.engine)
    engine.networks, engine.containers = lambda *_: next(looks), lambda *_: []
    monkeypatch.setattr(project, "docker_command", lambda: "docker")
    monkeypatch.setattr(it, "claim", lambda: None)
    for name, stand_in in (("machine_routes", list), ("image_name", lambda _: "image")):
        monkeypatch.setattr(bringing, name, stand_in)
    monkeypatch.setattr(bringing, "require_readable", lambda _: None)
    with pytest.raises(HostError, match=r"SUBNET=10\.77\.0\.0/24 is taken") as caught:
        asked = Making("compose", subnet=IPv4Network("10.77.0.0/24"), runs=tmp_path / "runs")
        bring(it, asked, load_cluster("2x2"))
    assert caught.value.seen == "held by Docker's network theirs"


@pytest.mark.parametrize("text", ["", "[]", "{}", '"x"', json.dumps({"project": 5, "home": "x"})])
def test_what_was_begun_is_found_whatever_stands_in_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(Engine, "connect", lambda: None)
    home = tmp_path / "mine"
    home.mkdir()
    assert Project.noted(home) is None
    (home / NOTE_FILE).write_text(text)
    found = Project.noted(home)
    assert found is not None
    assert (found.name, found.home) == ("ddplab-mine", str(home))
