"""What the nodes' image is made of: its name tells it, and the build sees no more."""

import re
import tomllib
from pathlib import Path

import pytest
from docker.utils import exclude_paths

from cluster.compose import image
from cluster.compose.image import image_name, node_pins
from tests.cluster.compose.fake_engine import GOOD, engine

pytestmark = pytest.mark.usefixtures("checkout")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("images/Dockerfile", "FROM base", "FROM base  "),
        ("constraints.txt", "torch==", "torch==9."),
        ("constraints.txt", "numpy==", "numpy==9."),
        ("pyproject.toml", '"numpy>=', '"numpy>=9.'),
    ],
)
def test_another_input_is_another_image(checkout: Path, file: str, old: str, new: str) -> None:
    before = image_name(engine()[0])
    assert re.fullmatch("ddplab-node:[0-9a-f]{12}", before)
    text = (checkout / file).read_text()
    assert old in text
    (checkout / file).write_text(text.replace(old, new))
    assert image_name(engine()[0]) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("constraints.txt", "pytest==", "pytest==9."),
        ("constraints.txt", "docker==", "docker==9."),
        ("pyproject.toml", '"pytest>=', '"pytest>=9.'),
        ("pyproject.toml", "line-length", "other-length"),
    ],
)
def test_what_nodes_do_not_run_with_does_not_count(
    checkout: Path, file: str, old: str, new: str
) -> None:
    before = image_name(engine()[0])
    text = (checkout / file).read_text()
    assert old in text
    (checkout / file).write_text(text.replace(old, new))
    assert image_name(engine()[0]) == before


def test_the_base_is_the_one_asked_for_or_made_here_or_pythons_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare, local = engine()[0], engine(GOOD, image.LOCAL_BASE)[0]
    assert image.base_image(bare) == "python:3.11-slim-bookworm"
    assert image.base_image(local) == "ddplab-base:bookworm"
    monkeypatch.setenv("DDPLAB_BASE_IMAGE", "mine:1")
    assert image.base_image(local) == "mine:1"
    named = image_name(local)
    monkeypatch.setenv("DDPLAB_BASE_IMAGE", "mine:2")
    assert image_name(local) != named


def test_all_that_ddplab_runs_with_is_pinned_for_nodes() -> None:
    pins = node_pins((ROOT / "constraints.txt").read_text())
    pinned = set(re.findall(r"^([a-z0-9-]+)==", pins, re.MULTILINE))
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["ray"]]
    assert {re.split("[<>=]", need)[0] for need in wanted} <= pinned
    assert {"sympy", "pydantic-core", "msgpack", "urllib3"} <= pinned  # and what these need
    assert not {"pytest", "docker", "starlette"} & pinned


def test_by_hand_no_more_of_the_checkout_is_sent_than_the_build_needs(tmp_path: Path) -> None:
    files = ("README.md", "ddp/__init__.py", "runs/1/run.json", ".venvs/1/bin/python", ".git/HEAD")
    needed = ("constraints.txt", "pyproject.toml", "images/Dockerfile", "images/wheels/a.whl")
    for name in (*files, *needed, "images/grafana/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = exclude_paths(str(tmp_path), [line for line in lines if line and line[0] != "#"])
    assert {name for name in sent if (tmp_path / name).is_file()} == set(needed)


def test_the_last_stage_has_no_setting_and_installs_nothing() -> None:
    text = re.sub(r"\\\n|^\s*#.*\n", "", (ROOT / "images" / "Dockerfile").read_text(), flags=re.M)
    *_, last = re.split(r"^(?=FROM )", text, flags=re.M)
    words = [line.split()[0] for line in last.splitlines() if line.strip()]
    assert words.count("COPY") == 2
    assert not {"ARG", "ENV", "ADD"} & set(words)
    assert "pip" not in last.lower()
    (base,) = re.findall(r"^FROM \S+ AS base\n(.*?)^FROM", text, re.M | re.S)
    assert "PIP" not in base
