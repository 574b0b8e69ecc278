"""Where the engine is looked for, and what is said where it does not do what it is asked."""

import json
from pathlib import Path

import pytest

from cluster.compose.engine import DEFAULT_HOST, engine_fault, engine_host
from cluster.compose.file import project_name


def context(folder: Path, name: str, host: str) -> None:
    """A context as the docker command keeps it."""
    place = folder / "contexts" / "meta" / f"digest-of-{name}"
    place.mkdir(parents=True)
    meta = {"Name": name, "Endpoints": {"docker": {"Host": host}}}
    (place / "meta.json").write_text(json.dumps(meta))


def test_the_engine_is_that_of_the_docker_command(tmp_path: Path) -> None:
    here = {"DOCKER_CONFIG": str(tmp_path)}
    assert engine_host(here) == DEFAULT_HOST
    context(tmp_path, "far", "ssh://far")
    context(tmp_path, "own", "unix:///run/user/7/docker.sock")
    assert engine_host(here) == DEFAULT_HOST
    (tmp_path / "config.json").write_text('{"currentContext": "own"}')
    assert engine_host(here) == "unix:///run/user/7/docker.sock"
    assert engine_host({**here, "DOCKER_CONTEXT": "far"}) == "ssh://far"
    assert engine_host({**here, "DOCKER_CONTEXT": "default"}) == DEFAULT_HOST
    assert engine_host({**here, "DOCKER_HOST": "tcp://x:1", "DOCKER_CONTEXT": "far"}) == "tcp://x:1"


@pytest.mark.parametrize("spoilt", ["", "[]", "{", '{"currentContext": 7}'])
def test_a_spoilt_configuration_is_no_configuration(tmp_path: Path, spoilt: str) -> None:
    (tmp_path / "config.json").write_text(spoilt)
    assert engine_host({"DOCKER_CONFIG": str(tmp_path)}) == DEFAULT_HOST


@pytest.mark.parametrize(
    ("seen", "message", "fix"),
    [
        ("(13, 'Permission denied')", "does not answer", "usermod -aG docker"),
        ("FileNotFoundError(2, 'No such file or directory')", "does not answer", "start docker"),
        ("ConnectionRefusedError(111, 'Connection refused')", "does not answer", "start docker"),
        ("500 Server Error: no space left on device", "refused", "docker info"),
    ],
)
def test_what_is_said(seen: str, message: str, fix: str) -> None:
    fault = engine_fault("unix:///x", seen)
    assert message in fault.message
    assert fix in fault.fix[0]


def test_the_lab_without_a_name_is_the_project_of_the_file() -> None:
    assert (project_name("default"), project_name("b")) == ("ddplab", "ddplab-b")
