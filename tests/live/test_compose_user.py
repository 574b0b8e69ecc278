"""A lab of containers of an ordinary user, who may talk to the engine: nodes work as that user."""

import importlib.util
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.compose.engine import Engine
from tests.live.ordinary import ROOT, OrdinaryUser, ordinary_user

pytestmark = pytest.mark.docker
SDK = ("docker", "requests", "urllib3", "certifi", "charset_normalizer", "idna")
FILES = ("docker-compose.yml", "constraints.txt", "pyproject.toml", ".dockerignore")

SCRIPT = """
import json, os, sys
from pathlib import Path
from cluster.lab import bring_up, take_down
from cluster.nodes import Making
from cluster.spec import load_cluster

name = sys.argv[1]
runs = Path("runs").resolve()
lab = bring_up(load_cluster("2x2"), name,
               Making("compose", runs=runs), probe=False)
node = lab.nodes.list()[0]
script = "id -u; id -g; echo $USER; echo there > $0/file; touch $0/../more 2>/dev/null || echo no"
process = lab.nodes.exec(node, ["sh", "-c", script, str(runs)])
told = process.communicate(timeout=30)[0].decode().split()
print(json.dumps({"told": told, "owner": (runs / "file").stat().st_uid,
                  "limits": dict(lab.nodes.limits(node)), "own": [os.geteuid(), os.getegid()]}))
take_down(name)
"""


def with_engine(user: OrdinaryUser) -> OrdinaryUser:
    """The same user with the checkout's other files, the SDK, and the right to the engine."""
    packages = user.home / "packages"
    for name in SDK:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        if not (packages / name).exists():
            shutil.copytree(Path(spec.origin).parent, packages / name)
    for name in FILES:
        shutil.copy(ROOT / name, packages)
    shutil.copytree(ROOT / "images", packages / "images")
    host = Engine.connect().host
    group = Path(host.removeprefix("unix://")).stat().st_gid
    return replace(user, groups=(group,))


def test_nodes_work_as_the_user_who_made_them() -> None:
    name = f"u{os.getpid()}"
    with ordinary_user() as plain:
        user = with_engine(plain)
        try:
            found = json.loads(user.run(SCRIPT, name))
        finally:
            Engine.connect().remove(f"ddplab-{name}")
    assert found["told"][:2] == [str(number) for number in found["own"]]
    assert found["told"][-1] == "no"
    assert found["owner"] == found["own"][0] != 0
    assert found["limits"] == {"out": 200_000_000, "in": 200_000_000, "inside": None}


def test_without_a_right_to_the_engine_that_is_said() -> None:
    if os.geteuid() != 0:
        pytest.skip("docker: only root can start a program without this user's own groups")
    with ordinary_user() as plain:
        with_engine(plain)
        script = SCRIPT.replace("lab = bring_up", "try: lab = bring_up").replace(
            "\nnode = ", "\nexcept Exception as e: print(e); sys.exit()\nnode = "
        )
        told = plain.run(script, "nobody")
    assert told.startswith("the Docker engine does not answer ")
    assert "usermod -aG docker" in told and "BACKEND=netns" in told
