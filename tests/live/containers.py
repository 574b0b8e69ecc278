"""Labs of containers for tests: a name of their own, and what the engine has of them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.compose.engine import PROJECT_LABEL, Engine
from cluster.compose.project import Project
from tests.live.lab import TestLab


@contextmanager
def named_lab(home: Path, engine: Engine) -> Iterator[TestLab]:
    """A name for a lab, and folders of its own; whatever is left of the lab is removed."""
    home.chmod(0o755)  # ranks do not run as root
    (home / "state").mkdir(mode=0o700)
    lab = TestLab(f"c{os.getpid()}-{time.monotonic_ns() % 10**6}", home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(home / "state"))
        patch.chdir(home)
        yield lab
    engine.remove(project(lab))


def project(it: TestLab) -> str:
    return f"ddplab-{it.name}"


def parts(engine: Engine, name: str) -> list[str]:
    """Whatever the engine has with the label of this project."""
    wanted = {"label": [f"{PROJECT_LABEL}={name}"]}
    found = [each["Id"] for each in engine.api.containers(all=True, filters=wanted)]
    found += [each["Name"] for each in engine.api.networks(filters=wanted)]
    return found + [each["Name"] for each in engine.api.volumes(filters=wanted)["Volumes"] or ()]


def containers(engine: Engine, it: TestLab) -> list[str]:
    """The nodes' containers, by number."""
    found = Project(engine, project(it), it.home).nodes()
    return [each["Id"] for each in found]
