"""The nodes' image as an engine builds it: what is in it, what is not, and killed half-way."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.compose.engine import Engine
from cluster.compose.image import STAGE_LABEL, base_image, image_name
from tests.cluster.compose.test_wheels import write_wheel

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
REPOSITORY = f"ddplab-test-image-{os.getpid()}"
SECRET = "not-for-the-image"
LASTS = f"sleep {100000 + os.getpid()}"
END_S = 30
IN_IMAGE = """
import importlib.metadata, json, os, pathlib, shutil, sys
import click, numpy, pydantic, rich, torch, torch.distributed, yaml
print(json.dumps({
    "python": sys.executable,
    "versions": {it.name.lower(): it.version for it in importlib.metadata.distributions()},
    "commands": [shutil.which(name) for name in ("python", "torchrun", "ip", "tc")],
    "compiled": [pathlib.Path(module.__cached__).exists() for module in (torch, numpy, yaml)],
    "settings": [name for name in os.environ if name.startswith("PIP") or "PROXY" in name.upper()],
    "wheels": [str(path) for path in pathlib.Path("/").glob("*/*.whl")],
    "gloo": torch.distributed.is_gloo_available(),
}))
"""


LISTED = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"


def docker(*words: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        ["docker", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout whose packages are empty wheels, so that its image is built in no time."""
    project, shelf = tmp_path / "project", tmp_path / "shelf"
    (project / "images").mkdir(parents=True)
    shelf.mkdir()
    shutil.copy(ROOT / "images" / "Dockerfile", project / "images")
    write_wheel(shelf, "torch", "1.0")
    write_wheel(shelf, "click", "2.0")
    write_wheel(shelf, "ray", "3.0")
    (project / "constraints.txt").write_text(
        "# torch\ntorch==1.0\n\n# what else ddplab runs with\nclick==2.0\n"
        "\n# real clusters\nray==3.0\n"
    )
    (project / "pyproject.toml").write_text(
        '[project]\ndependencies = ["click>=1", "torch>=1"]\n'
        '[project.optional-dependencies]\nray = ["ray>=2"]\n'
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("NO_PROXY", SECRET)
    yield project
    for name in tagged():
        docker("image", "rm", "--force", name)
    left = docker(
        "image", "ls", "--quiet", "--filter=dangling=true", f"--filter=label={STAGE_LABEL}"
    )
    of_tests = [it for it in left.split() if REPOSITORY in docker("image", "inspect", it)]
    if of_tests:
        docker("image", "rm", "--force", *of_tests)


def tagged() -> list[str]:
    return docker("image", "ls", "--format={{.Repository}}:{{.Tag}}", REPOSITORY).split()


@contextmanager
def building(project: Path) -> Iterator["subprocess.Popen[str]"]:
    script = Path(__file__).with_name("image_of_wheels.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(project), REPOSITORY],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def built(project: Path) -> str:
    """The name of the image, once it is there."""
    with building(project) as process:
        said = process.communicate(timeout=240)[0].splitlines()
        assert process.returncode == 0, said
    return said[-1]


def test_a_node_finds_all_it_runs_with_as_anybody_and_without_a_network() -> None:
    rights = ["--user=65534:65534", "--cap-drop=ALL", "--read-only", "--network=none"]
    name = image_name(Engine.connect())
    found = json.loads(docker("run", "--rm", *rights, name, "python", "-c", IN_IMAGE))
    assert found["python"] == "/opt/ddplab/bin/python"
    assert found["commands"][:2] == ["/opt/ddplab/bin/python", "/opt/ddplab/bin/torchrun"]
    assert None not in found["commands"]
    assert found["compiled"] == [True] * 3
    assert (found["settings"], found["wheels"], found["gloo"]) == ([], [], True)
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    versions = {name.replace("_", "-"): version for name, version in found["versions"].items()}
    assert (versions["torch"], versions["ray"]) == (pins["torch"], pins["ray"])
    assert versions.items() <= pins.items()
    assert not {"ddplab", "docker", "pytest"} & set(versions)


def test_packages_are_layers_and_nothing_of_their_making_is_kept(project: Path) -> None:
    name = built(project)
    seen = docker("history", "--no-trunc", name) + docker("image", "inspect", name)
    assert SECRET not in seen
    assert "PIP_" not in seen
    run = ["run", "--rm", "--network=none", name]
    assert docker(*run, "python", "-c", LISTED).split() == ["click", "ray", "torch"]
    assert docker(*run, "sh", "-c", "ls /build /opt/pip 2>&1 || true").count("No such file") == 2
    copied = docker("history", "--format={{.CreatedBy}}", "--no-trunc", name).split("\n")
    assert sum("COPY" in line for line in copied) == 2
    left = ["image", "ls", "--quiet", f"--filter=label={STAGE_LABEL}={name}"]
    assert docker(*left) == ""
    assert sorted(tagged()) == sorted([name, f"{REPOSITORY}:latest"])


def test_compose_builds_it_by_hand_from_wheels(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/compose-by-hand.md says where no index can be reached."""
    shutil.copy(ROOT / "docker-compose.yml", project)
    shutil.copytree(project.parent / "shelf", project / "images/wheels")
    name = f"{REPOSITORY}:by-hand"
    engine = Engine.connect()
    monkeypatch.setenv("DDPLAB_IMAGE", name)
    monkeypatch.setenv("DDPLAB_BASE_IMAGE", base_image(engine))
    engine.api.close()
    docker("compose", "build", folder=project)
    run = ["run", "--rm", "--network=none", name]
    assert docker(*run, "python", "-c", LISTED).split() == ["click", "ray", "torch"]
    assert SECRET not in docker("history", "--no-trunc", name) + docker("image", "inspect", name)


def test_killed_half_way_it_leaves_no_name_and_the_engine_stops(project: Path) -> None:
    file = project / "images" / "Dockerfile"
    file.write_text(f"ARG BASE_IMAGE\nFROM $BASE_IMAGE\nRUN {LASTS}\n")
    with building(project) as process:
        assert process.stdout is not None
        assert any(LASTS in line for line in process.stdout)
        wait_until(True)
        process.kill()
    assert tagged() == []
    wait_until(False)
    file.write_text(file.read_text().replace(LASTS, "true"))
    assert built(project) in tagged()


def wait_until(runs: bool) -> None:
    """Until the engine runs the step that lasts, or no longer does."""
    deadline = time.monotonic() + END_S
    while (LASTS in docker("ps", "--no-trunc", "--format={{.Command}}")) != runs:
        assert time.monotonic() < deadline, f"within {END_S} s: {'no step' if runs else 'goes on'}"
        time.sleep(0.1)
