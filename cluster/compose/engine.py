"""The Docker engine, asked through its SDK, and the docker command; their faults become ours here.

Owns where the engine is and what carries a project's label. What a container is made of is said by
`docker-compose.yml`.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.errors import HostError, MissingTool
from cluster.holding import user_name
from cluster.packages import as_root, install_commands

if TYPE_CHECKING:
    from docker import APIClient

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
NUMBER_LABEL = "com.docker.compose.container-number"
HOME_LABEL = "ddplab.home"
"""The directory of the lab that a container or network belongs to."""
DEFAULT_HOST = "unix:///var/run/docker.sock"
ANSWER_TIMEOUT_S = 10
"""For the first word of an engine."""
TIMEOUT_S = 60
REMOVE_TIMEOUT_S = 10.0
AT_ONCE = 8


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answers."""

    api: "APIClient"
    host: str

    @classmethod
    def connect(cls) -> "Engine":
        """The engine that the docker command would talk to. Raises MissingTool, HostError."""
        docker_command()
        if find_spec("docker") is None:
            raise HostError(
                "the Python package docker is not installed",
                "the engine is asked through it",
                "make setup, or: pip install 'ddplab[docker]'",
            )
        import docker  # slow to import, and only needed here

        host = engine_host(os.environ)
        if not is_here(host):
            raise HostError(
                "the Docker engine may be on another machine",
                "nodes see folders of this machine, through an engine that runs on it",
                ("unset DOCKER_HOST, or: docker context use default", "BACKEND=netns"),
                seen=host,
            )
        with faults_of(host):
            try:
                api = docker.APIClient(base_url=host, version="auto", timeout=ANSWER_TIMEOUT_S)
            except ValueError as exc:  # a host that is none, such as tcp://here:port
                raise engine_fault(host, f"DOCKER_HOST={host}: {exc}") from exc
            api.timeout = TIMEOUT_S
            return cls(api, host)

    @property
    def environment(self) -> dict[str, str]:
        """For the docker command, so that it talks to this engine, in English."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")
        }
        return {**kept, "DOCKER_HOST": self.host, "LC_ALL": "C"}

    def containers(self, project: str, service: str | None = None) -> list[dict[str, Any]]:
        """What the engine knows of each container of a project, the stopped ones too."""
        labels = [f"{PROJECT_LABEL}={project}"]
        labels += [f"{SERVICE_LABEL}={service}"] if service else []
        with faults_of(self.host):
            found = self.api.containers(all=True, filters={"label": labels})
            return [
                inspected
                for short in found
                if (inspected := self._there(self.api.inspect_container, short["Id"])) is not None
            ]

    def networks(self, project: str | None = None) -> list[dict[str, Any]]:
        """The networks of a project, or all there are."""
        filters = {"label": [f"{PROJECT_LABEL}={project}"]} if project else {}
        with faults_of(self.host):
            found: list[dict[str, Any]] = self.api.networks(filters=filters)
            return found

    def container(self, identity: str) -> dict[str, Any] | None:
        """What the engine knows of a container; None where it is gone."""
        with faults_of(self.host):
            found: dict[str, Any] | None = self._there(self.api.inspect_container, identity)
            return found

    def log_tail(self, identity: str, lines: int = 20) -> str:
        """The last lines that a container wrote."""
        with faults_of(self.host):
            written = self._there(self.api.logs, identity, tail=lines)
            return written.decode(errors="replace").strip() if written else ""

    def has_image(self, name: str) -> bool:
        with faults_of(self.host):
            return self._there(self.api.inspect_image, name) is not None

    def remove(self, project: str, home: str | None = None) -> None:
        """Removes every container, network and volume that carries this project's label.

        And, where `home` is given, that label as well: others may keep volumes under the same
        project. Raises HostError where something is still there after a while.
        """
        labels = [f"{PROJECT_LABEL}={project}"]
        labels += [f"{HOME_LABEL}={home}"] if home is not None else []
        deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
        while True:
            try:
                self._remove_once({"label": labels})
                return
            except HostError:  # such as a network that a container has not left yet
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(REMOVE_TIMEOUT_S / 50)

    def _remove_once(self, wanted: dict[str, Any]) -> None:
        with faults_of(self.host), ThreadPoolExecutor(AT_ONCE) as pool:
            found = [it["Id"] for it in self.api.containers(all=True, filters=wanted)]
            list(pool.map(self._remove_container, found))
            for network in self.api.networks(filters=wanted):
                self._there(self.api.remove_network, network["Id"])
            for volume in self.api.volumes(filters=wanted)["Volumes"] or ():
                self._there(self.api.remove_volume, volume["Name"])

    def _remove_container(self, identity: str) -> None:
        self._there(self.api.remove_container, identity, force=True, v=True)

    def _there(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a call answers; None where what it was about is gone, or just going."""
        from docker.errors import APIError, NotFound

        try:
            return call(*arguments, **options)
        except NotFound:
            return None
        except APIError as exc:
            if "already in progress" in str(exc):
                return None
            raise


def docker_command() -> str:
    """The full path of the docker command. Raises MissingTool."""
    path = shutil.which("docker")
    if path is None:
        raise MissingTool(
            "the command 'docker' is not installed",
            "nodes that are containers are made with Docker and Compose",
            [*install_commands(["docker"]), "BACKEND=netns     needs no Docker"],
        )
    return path


def engine_host(environ: Mapping[str, str]) -> str:
    """Where the docker command finds its engine: DOCKER_HOST, or the context that is in use."""
    if host := environ.get("DOCKER_HOST"):
        return host
    folder = Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    name = environ.get("DOCKER_CONTEXT") or _read(folder / "config.json").get("currentContext")
    if name and name != "default":
        for file in folder.glob("contexts/meta/*/meta.json"):
            meta = _read(file)
            if meta.get("Name") == name:
                return _host(meta) or DEFAULT_HOST
    return DEFAULT_HOST


def _host(meta: Mapping[str, Any]) -> str | None:
    try:
        return str(meta["Endpoints"]["docker"]["Host"])
    except (KeyError, TypeError):  # a context without an engine
        return None


def is_here(host: str) -> bool:
    """Whether an engine at this address is sure to be on this machine."""
    return host.startswith("unix://")


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


@contextmanager
def faults_of(host: str) -> Iterator[None]:
    """Turns what the SDK raises into HostError."""
    from docker.errors import DockerException
    from requests import RequestException

    try:
        yield
    except (DockerException, RequestException, OSError) as exc:
        raise engine_fault(host, " ".join(str(exc).split())) from exc


def engine_fault(host: str, seen: str) -> HostError:
    """The error for an engine that does not do what it is asked, or does not answer."""
    rule = "nodes that are containers are made by a Docker engine"
    netns = "BACKEND=netns     needs no Docker"
    if "Permission denied" in seen or "permission denied" in seen:
        join: Sequence[str] = (
            f"sudo usermod -aG docker {user_name()}     then log in again",
            netns,
        )
        return HostError(f"the Docker engine does not answer {user_name()}", rule, join, seen=host)
    silent = ("No such file", "Connection refused", "Connection aborted", "timed out")
    if any(words in seen for words in silent):
        start = as_root("systemctl start docker")
        return HostError("the Docker engine does not answer", rule, (start, netns), seen=host)
    return HostError("the Docker engine refused", rule, "docker info", seen=seen[:300])
