"""The compose backend: nodes are containers, made by Docker Compose from `docker-compose.yml`.

Nothing is touched that does not carry this lab's project label and its directory's name.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from cluster.compose.bringing import Brought
from cluster.compose.engine import Engine, docker_command, engine_host, is_here
from cluster.compose.file import (
    COMPOSE_FILE,
    Filling,
    compose_command,
    project_name,
    shown,
    up_words,
)
from cluster.compose.image import ensure_image, image_name
from cluster.compose.monitoring import choose_management, fetch_images
from cluster.compose.nodes import ComposeNodes, how_ended
from cluster.compose.project import MONITORING, Project
from cluster.compose.subnets import candidates
from cluster.errors import ClusterError, HostError, MissingTool, NoLab
from cluster.nodes import Backend, Fit, Node, Place
from cluster.packages import compose_commands
from cluster.spec import ClusterSpec

ASK_TIMEOUT_S = 10.0


def _fit() -> Fit:
    """Asks the docker command; nothing that is not there is waited for."""
    docker = shutil.which("docker")
    if docker is None:
        return Fit(False, "there is no docker command")
    if find_spec("docker") is None:
        return Fit(False, "the Python package docker is not installed")
    if not COMPOSE_FILE.exists():
        return Fit(False, "docker-compose.yml is not here: this is no checkout")
    if not is_here(host := engine_host(os.environ)):
        return Fit(False, f"the Docker engine may be on another machine ({host})")
    asked = ["version", "--format", "{{.Server.Version}}"], ["compose", "version", "--short"]
    started = [_start([docker, *words]) for words in asked]
    engine, compose = (_answer(process) for process in started)
    if engine is None:
        return Fit(False, "no Docker engine answers")
    if compose is None or not _is_new(compose):
        return Fit(False, f"Docker {engine} answers, but Compose v2 is missing")
    return Fit(True, f"Docker {engine} and Compose {compose.lstrip('v')} answer")


def _start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _answer(process: "subprocess.Popen[str]") -> str | None:
    """What a command answers; None where it fails, or does not answer in time."""
    with process:
        try:
            said = process.communicate(timeout=ASK_TIMEOUT_S)[0].strip()
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    return said if process.returncode == 0 and said else None


def _is_new(compose: str | None) -> bool:
    """Whether this is a version of Compose that nodes can be made with."""
    return compose is not None and re.match(r"v?([2-9]|\d\d)", compose) is not None


def _require_compose() -> None:
    version = _answer(_start([docker_command(), "compose", "version", "--short"]))
    if not _is_new(version):
        old = (
            "docker-compose is there, which is Compose 1"
            if shutil.which("docker-compose")
            else None
        )
        raise MissingTool(
            "Docker Compose v2 is not installed",
            "nodes that are containers are made with docker compose, version 2 or newer",
            (*compose_commands(), "BACKEND=netns     needs no Docker"),
            seen=f"docker compose says {version}" if version else old,
        )


def _create(place: Place) -> ComposeNodes:
    if place.making.privilege != "none":
        raise ClusterError(
            f"PRIVILEGE={place.making.privilege} is for labs of network namespaces",
            "the Docker engine has the rights that containers need",
            ("leave PRIVILEGE out", "BACKEND=netns"),
        )
    if not COMPOSE_FILE.exists():
        rule = "nodes that are containers are made from a checkout's docker-compose.yml"
        raise HostError(f"{COMPOSE_FILE} is not here", rule, "BACKEND=netns")
    _require_compose()
    project = Project(Engine.connect(), project_name(place.name), place.directory)
    return ComposeNodes(project, place.making)


def _prepare(place: Place, timed: Callable[[], AbstractContextManager[None]]) -> None:
    engine = Engine.connect()
    ensure_image(engine, timed)
    if place.making.monitoring:
        fetch_images(engine, timed)


def _attach(directory: Path, saved: Mapping[str, Any]) -> ComposeNodes:
    engine = Engine.connect()
    containers = tuple((str(identity), str(started)) for identity, started in saved["containers"])
    nodes = tuple(Node(*node) for node in saved["nodes"])
    for node, (identity, started) in zip(nodes, containers, strict=True):
        ending = how_ended(node, engine.container(identity), started)
        if ending is not None:
            raise NoLab(ending)
    project = Project(engine, saved["project"], directory, saved["home"])
    return ComposeNodes(project, brought=Brought(IPv4Network(saved["subnet"]), nodes, containers))


def _plan(spec: ClusterSpec, place: Place) -> tuple[str, ...]:
    subnet = place.making.subnet or next(iter(candidates()))
    runs = (place.making.runs or Path("runs")).resolve()
    image = image_name(Engine.connect())
    wanted = place.making.monitoring
    management = choose_management({}, subnet, os.environ) if wanted else None
    filling = Filling(spec, place.directory, image, subnet, runs, Path.cwd(), management)
    profiles = [MONITORING] if place.making.monitoring else []
    command = compose_command("docker", project_name(place.name), [COMPOSE_FILE], profiles)
    return (shown(filling.environment(), [*command, *up_words(spec.nodes)]),)


def _clear(directory: Path) -> None:
    """Removes what a lab left that is no longer whole, or never was."""
    project = Project.noted(directory)
    if project is not None:
        project.remove()


COMPOSE = Backend(
    name="compose",
    summary="containers on this machine; Docker and Compose v2",
    fit=_fit,
    create=_create,
    prepare=_prepare,
    attach=_attach,
    plan=_plan,
    clear=_clear,
)
