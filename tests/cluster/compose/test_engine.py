"""Where the engine is looked for, and what is said where it does not do what it is asked."""

import json
import socket
from pathlib import Path

import pytest

from cluster.compose import backend, engine
from cluster.compose.engine import DEFAULT_HOST, Engine, engine_fault, engine_host
from cluster.compose.file import project_name
from cluster.errors import HostError


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


@pytest.mark.parametrize("endpoints", [None, {}, {"docker": {}}, {"kubernetes": {"Host": "x"}}])
def test_a_context_without_an_engine_is_none(tmp_path: Path, endpoints: object) -> None:
    context(tmp_path, "own", "unix:///own")
    (meta,) = tmp_path.glob("contexts/meta/*/meta.json")
    meta.write_text(json.dumps({"Name": "own", "Endpoints": endpoints}))
    assert engine_host({"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "own"}) == DEFAULT_HOST


@pytest.mark.parametrize("host", ["tcp://here:port", "here"])
def test_a_host_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    (tmp_path / "docker").write_text("")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(HostError, match="the Docker engine") as caught:
        Engine.connect()
    assert host in str(caught.value.seen)


@pytest.mark.parametrize("host", ["tcp://10.0.0.1:2376", "ssh://far", "http://127.0.0.1:2375"])
def test_an_engine_of_another_machine_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setattr(backend.shutil, "which", lambda name: f"/bin/{name}")
    fit = backend.COMPOSE.fit()
    assert not fit.ok and fit.reason.endswith(f"may be on another machine ({host})")


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


def test_an_engine_that_is_silent_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text("")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine, "ANSWER_TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
        with pytest.raises(HostError, match="the Docker engine does not answer"):
            Engine.connect()
