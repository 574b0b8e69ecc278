"""`make base-image`: what it calls, and what it says where it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.compose.image import LOCAL_BASE
from tools.base_image import IMAGE

if TYPE_CHECKING:
    from conftest import Checkout

ROOT = Path(__file__).parents[2]
STUB = """\
#!/usr/bin/python3
import json, os, sys
from pathlib import Path
me, words = Path(sys.argv[0]), sys.argv[1:]
with open(me.parent / "words.jsonl", "a") as log:
    print(json.dumps([me.name, *words]), file=log)
if os.environ.get("STUB_FAILS") in words:
    sys.exit("E: it cannot be reached")
if me.name == "mmdebstrap":
    Path(words[-1]).write_text("a system")
if words[0] == "import" and Path(words[1]).read_text() != "a system":
    sys.exit("the archive is not whole")
"""


@pytest.fixture
def machine(checkout: Checkout) -> Checkout:
    """A checkout on a machine whose mmdebstrap and docker only say how they were called."""
    for package in ("cluster", "jobs"):
        shutil.copytree(ROOT / package, checkout.root / package, dirs_exist_ok=True)
    for name in ("mmdebstrap", "docker"):
        stub = checkout.outside / name
        stub.write_text(STUB)
        stub.chmod(0o755)
    return checkout


def called(machine: Checkout) -> list[list[str]]:
    log = machine.outside / "words.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_the_front_door_makes_the_image_that_nodes_start_from() -> None:
    assert IMAGE == LOCAL_BASE


def test_a_whole_archive_is_imported(machine: Checkout) -> None:
    done = machine.make("base-image")
    assert done.returncode == 0, done.stderr
    asked, gathered, imported = called(machine)
    assert asked[:2] == ["docker", "version"]
    packages = "--include=python3,python3-venv,iproute2,ca-certificates"
    assert gathered[:4] == ["mmdebstrap", "--variant=minbase", packages, "bookworm"]
    assert imported == ["docker", "import", gathered[4], "ddplab-base:bookworm"]
    assert not Path(gathered[4]).exists()
    assert machine.environments() == []  # it needs none, and so it does not make one


@pytest.mark.parametrize("missing", ["mmdebstrap", "docker"])
def test_what_is_missing_is_named_with_the_line_that_installs_it(
    machine: Checkout, missing: str
) -> None:
    (machine.outside / missing).unlink()
    tools = ("make", "sh", "python3", "env", "id", "dirname")
    for name in tools:  # a path on which nothing else is
        found = shutil.which(name)
        if found and not (machine.outside / name).exists():
            (machine.outside / name).symlink_to(found)
    done = machine.make("base-image", PATH=str(machine.outside))
    assert done.returncode != 0
    assert f"ddplab: {missing} is not installed." in done.stderr
    assert "install " + {"docker": "docker.io", "mmdebstrap": "mmdebstrap"}[missing] in done.stderr
    assert called(machine) == []


@pytest.mark.parametrize(
    ("fails", "headline", "num_calls"),
    [
        ("version", "the Docker engine does not answer", 1),
        ("bookworm", f"{IMAGE} could not be made: debian failed", 2),
        ("import", f"{IMAGE} could not be made: image failed", 3),
    ],
)
def test_what_fails_says_why_and_nothing_comes_after_it(
    machine: Checkout, fails: str, headline: str, num_calls: int
) -> None:
    done = machine.make("base-image", STUB_FAILS=fails)
    assert done.returncode != 0
    assert headline in done.stderr
    assert "E: it cannot be reached" in done.stderr
    assert len(called(machine)) == num_calls
