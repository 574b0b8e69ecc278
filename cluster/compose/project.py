"""The Compose project of one lab: told from others', brought up, found again, removed.

A project is this lab's where its label names the lab's own directory, which is noted there before
anything is made: so what a command that was killed half-way left is found, and nothing else.
"""

import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster.compose import tie as tie_script
from cluster.compose.engine import HOME_LABEL, NUMBER_LABEL, Engine, docker_command
from cluster.compose.file import (
    BY_HAND,
    COMPOSE_FILE,
    PROJECT,
    SERVICE,
    Filling,
    compose_command,
    project_name,
    up_words,
)
from cluster.errors import HostError, LabExists

NOTE_FILE = "compose-begun"
OVERLAY_FILE = "compose-overlay.yaml"
LOG_FILE = "compose.log"
UP_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
MONITORING = "monitoring"
_PROGRESS = re.compile(r"(Container|Network|Volume)\s+\S+\s+\w+$")
"""Such as `Network ddplab_fabric  Error`; why follows in another line."""


class Project:
    """One project. `home` is the label by which it is known: the lab's directory, or `by hand`."""

    def __init__(self, engine: Engine, name: str, directory: Path, home: str | None = None) -> None:
        self.engine, self.name = engine, name
        self.home = home or str(directory)
        self._directory = directory
        self._tie: subprocess.Popen[bytes] | None = None

    @classmethod
    def noted(cls, directory: Path) -> "Project | None":
        """The project that was, or was to be, brought up for the lab of this directory."""
        if not (directory / NOTE_FILE).exists():
            return None
        return cls(Engine.connect(), project_name(directory.name), directory)

    def note(self) -> None:
        """Notes that it is begun, so that it is found whatever becomes of this process."""
        (self._directory / NOTE_FILE).touch()

    def nodes(self) -> list[dict[str, Any]]:
        """What the engine knows of the nodes' containers, by number."""
        found = self.engine.containers(self.name, SERVICE)
        return sorted(found, key=lambda it: int(labels_of(it)[NUMBER_LABEL]))

    def held_by(self) -> set[str]:
        """By which labels the parts of a project of this name are known; empty: there is none."""
        parts = [labels_of(it) for it in self.engine.containers(self.name)]
        parts += [it.get("Labels") or {} for it in self.engine.networks(self.name)]
        return {labels.get(HOME_LABEL, "none of ddplab's") for labels in parts}

    def claim(self) -> None:
        """Removes what an earlier lab of this directory left. Raises LabExists for all others'."""
        others = self.held_by() - {self.home}
        if others:
            raise LabExists(
                f'the engine has a Compose project "{self.name}" already',
                "what others have made is left alone",
                (
                    "another name for the lab: LAB=name",
                    f"where it is yours: docker compose --project-name {self.name} down",
                ),
                seen=f"it is of {', '.join(sorted(others))}",
            )
        self.engine.remove(self.name, self.home)

    def bring_up(self, filling: Filling) -> None:
        """Runs `docker compose up`; what it makes ends with this process until `keep`."""
        files = [COMPOSE_FILE]
        if (overlay := filling.overlay()) is not None:
            files.append(self._directory / OVERLAY_FILE)
            files[-1].write_text(overlay)
        profiles = [MONITORING] if filling.management else []
        command = compose_command(docker_command(), self.name, files, profiles)
        command += up_words(filling.spec.nodes)
        environment = {**self.engine.environment, **filling.environment()}
        status = self._run_tied(command, environment)
        if status != 0:
            raise _refused(status, self.log_lines())

    def _run_tied(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """The exit status of the command, or of what runs it where that ended first."""
        self.note()
        with (self._directory / LOG_FILE).open("wb") as log:
            self._tie = subprocess.Popen(
                [sys.executable, "-m", tie_script.__name__, self.name, self.home, *command],
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, "PYTHONPATH": str(PROJECT)},
                start_new_session=True,
            )
        assert self._tie.stdout is not None
        if not select.select([self._tie.stdout], [], [], UP_TIMEOUT_S)[0]:
            raise HostError(
                f"Docker Compose did not end within {UP_TIMEOUT_S:g} s", fix="docker info"
            )
        said = self._tie.stdout.readline()
        return int(said) if said.strip() else self._tie.wait(END_TIMEOUT_S) or 1

    def was_overtaken(self) -> bool:
        """Whether somebody took a subnet or a port after it was found free."""
        words = ("overlap", "already allocated", "address already in use")
        return any(word in line for line in self.log_lines() for word in words)

    def log_lines(self) -> list[str]:
        """What Compose said, without empty lines."""
        try:
            text = (self._directory / LOG_FILE).read_text(errors="replace")
        except OSError:
            return []
        return [line.strip() for line in text.splitlines() if line.strip()]

    def keep(self) -> None:
        """From here on it outlives this process."""
        if self._tie is not None and self._tie.stdin is not None:
            self._tie.stdin.write(tie_script.KEEP)
            self._close_tie()

    def remove(self) -> None:
        """Removes all of it. Does nothing where nothing is left."""
        if self._tie is not None:
            self._close_tie()
        self.engine.remove(self.name, self.home)

    def _close_tie(self) -> None:
        assert self._tie is not None and self._tie.stdin is not None
        with suppress(OSError):
            self._tie.stdin.close()
        try:
            self._tie.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired as exc:
            raise HostError(
                f"the Docker engine did not remove {self.name} within {END_TIMEOUT_S:g} s",
                fix="docker info",
            ) from exc
        if self._tie.stdout is not None:
            self._tie.stdout.close()
        self._tie = None


def _refused(status: int, lines: Sequence[str]) -> HostError:
    """The error for a Compose that ended with this status; `lines` are what it said."""
    told = [line for line in lines if not _PROGRESS.match(line)]
    faults = [line for line in told if "rror" in line or "failed" in line]
    seen = [*faults, *reversed(told), "it said nothing"][0]
    if status < 0:
        seen = f"it was killed by {signal.Signals(-status).name}"
    return HostError(
        "Docker Compose did not bring the nodes up",
        "nodes that are containers are made by Docker Compose from docker-compose.yml",
        "make doctor",
        seen=seen[:300],
    )


def labels_of(container: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels of a container, as `inspect` tells them."""
    found: Mapping[str, str] = container["Config"]["Labels"] or {}
    return found


def is_by_hand(containers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a person brought these up by typing `docker compose up`."""
    return bool(containers) and all(labels_of(it).get(HOME_LABEL) == BY_HAND for it in containers)
