"""The name of the nodes' image, what it is built from, and that a half one never gets the name."""

import fcntl
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from docker.errors import APIError
from docker.utils import exclude_paths

from cluster.compose import image
from cluster.compose.engine import Engine
from cluster.compose.image import DEFAULT_TAG, ensure_image, image_name, node_pins
from cluster.compose.wheels import Target
from cluster.errors import HostError

pytestmark = pytest.mark.usefixtures("project")
ROOT = Path(__file__).parents[3]
GOOD = [{"stream": "Step 1/2 : FROM base\n"}, {"stream": "Successfully built 0123abcd\n"}]
BAD = [
    {"stream": "ERROR: No matching distribution found for click\n"},
    {"stream": "Removing intermediate container 99\n"},
    {"error": "The command '/bin/sh -c pip' returned a non-zero code: 1"},
]


class FakeApi:
    """An engine's API that has some images, and remembers what it was asked for."""

    def __init__(self, says: list[dict[str, str]], *images: str) -> None:
        self.says, self.images, self.asked = says, set(images), []
        self.context: dict[str, str] = {}

    def build(self, **options: Any) -> Iterator[dict[str, str]]:
        folder = Path(options["path"])
        self.asked.append(("build", options["tag"], options["buildargs"]))
        self.context = {
            str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob("*")
            if path.is_file()
        }
        return (part for part in self.says)

    def tag(self, built: str, repository: str, tag: str) -> None:
        self.asked.append(("tag", built, f"{repository}:{tag}"))
        self.images.add(f"{repository}:{tag}")

    def prune_images(self, filters: dict[str, Any]) -> None:
        self.asked.append(("prune", filters))

    def pull(self, base: str, **_: Any) -> list[dict[str, str]]:
        self.asked.append(("pull", base))
        if base == "refused":
            raise APIError("500", None, "no such host")
        return [{"status": "pulling"}, {"error": "manifest unknown"}]


class FakeEngine(Engine):
    """An engine of which only the API and the images are looked at."""

    def has_image(self, name: str) -> bool:
        return name in self.api.images  # type: ignore[attr-defined]


def engine(says: list[dict[str, str]] = GOOD, *images: str) -> tuple[FakeEngine, FakeApi]:
    api = FakeApi(says, *images)
    return FakeEngine(api, "unix:///fake"), api  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of which the image is made; its packages come from nowhere."""
    project = tmp_path / "project"
    (project / "images").mkdir(parents=True)
    for name in ("constraints.txt", "pyproject.toml", "images/Dockerfile"):
        shutil.copy(ROOT / name, project / name)
    monkeypatch.setattr(image, "PROJECT", project)
    monkeypatch.delenv(image.BASE_VARIABLE, raising=False)
    monkeypatch.setattr(image, "state_root", lambda *_: tmp_path)
    monkeypatch.setattr(image, "about_base", lambda *_: Target((3, 11), "x86_64", (2, 36)))
    monkeypatch.setattr(
        image, "collect", lambda pins, _, folder: (folder / "pins").write_text("\n".join(pins))
    )
    return project


class Timer:
    """Counts how often somebody had to wait."""

    def __init__(self) -> None:
        self.num_waits = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.num_waits += 1
        yield


# --- the name


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("images/Dockerfile", "FROM base", "FROM base  "),
        ("constraints.txt", "torch==", "torch==9."),
        ("constraints.txt", "numpy==", "numpy==9."),
        ("pyproject.toml", '"numpy>=', '"numpy>=9.'),
    ],
)
def test_another_input_is_another_image(project: Path, file: str, old: str, new: str) -> None:
    before = image_name(engine()[0])
    assert re.fullmatch("ddplab-node:[0-9a-f]{12}", before)
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))
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
    project: Path, file: str, old: str, new: str
) -> None:
    before = image_name(engine()[0])
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))
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


# --- what it is built from


def test_all_that_ddplab_runs_with_is_pinned_for_nodes() -> None:
    pins = node_pins((ROOT / "constraints.txt").read_text())
    pinned = set(re.findall(r"^([a-z0-9-]+)==", pins, re.MULTILINE))
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needs = {re.split("[<>=]", need)[0] for need in document["project"]["dependencies"]}
    assert needs <= pinned
    assert {"sympy", "pydantic-core"} <= pinned  # and what these need
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


# --- building it


def test_an_image_that_is_there_is_not_built() -> None:
    timer = Timer()
    name = image_name(engine()[0])
    there, api = engine(GOOD, name)
    assert ensure_image(there, timer) == name
    assert (api.asked, timer.num_waits) == ([], 0)


def test_the_name_is_given_last_and_then_what_the_build_left_is_removed() -> None:
    timer = Timer()
    here, api = engine(GOOD, image.LOCAL_BASE)
    lines: list[str] = []
    name = ensure_image(here, timer, lines.append)
    arguments = {"BASE_IMAGE": image.LOCAL_BASE, "BUILT_BY": name}
    first, *then = api.asked
    assert first[:2] == ("build", DEFAULT_TAG)
    assert arguments.items() <= first[2].items()
    assert then == [
        ("tag", "0123abcd", name),
        ("prune", {"dangling": True, "label": f"ddplab.built-by={name}"}),
    ]
    assert timer.num_waits == 1
    assert lines == ["Step 1/2 : FROM base", "Successfully built 0123abcd"]
    assert ensure_image(here, timer) == name
    assert timer.num_waits == 1


def test_the_build_sees_only_what_the_name_tells() -> None:
    here, api = engine(GOOD, image.LOCAL_BASE)
    ensure_image(here, Timer())
    pins = api.context.pop("images/wheels/pins").splitlines()
    assert sorted(api.context) == ["constraints.txt", "images/Dockerfile", "pyproject.toml"]
    assert pins == [line for line in api.context["constraints.txt"].splitlines() if "==" in line]
    assert len([pin for pin in pins if pin.startswith("torch==")]) == 1
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert tomllib.loads(api.context["pyproject.toml"]) == {"project": {"dependencies": needs}}


def test_two_commands_at_once_build_it_once() -> None:
    here, api = engine(GOOD, image.LOCAL_BASE)
    building, waiting = Event(), Event()

    @contextmanager
    def first() -> Iterator[None]:
        yield

    @contextmanager
    def second() -> Iterator[None]:
        waiting.set()
        yield

    def says(_: str) -> None:
        building.set()
        assert waiting.wait(10)

    with ThreadPoolExecutor() as pool:
        one = pool.submit(ensure_image, here, first, says)
        assert building.wait(10)
        other = pool.submit(ensure_image, here, second)
        assert one.result(20) == other.result(20)
    assert [word for word, *_ in api.asked] == ["build", "tag", "prune"]


def test_the_folder_of_a_build_is_removed_also_that_of_one_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"ddplab-image-{os.geteuid()}-abc" / "images" / "wheels"
    left.mkdir(parents=True)
    other = tmp_path / "ddplab-image-4711-abc"
    other.mkdir()
    ensure_image(engine(GOOD, image.LOCAL_BASE)[0], Timer())
    assert list(tmp_path.glob("ddplab-image-*")) == [other]


def test_who_waits_too_long_is_told_for_whom(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image, "WAIT_TIMEOUT_S", 0.0)
    here, api = engine(GOOD, image.LOCAL_BASE)
    with (tmp_path / image.LOCK_FILE).open("w") as other:
        other.write("4711")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HostError, match="another command") as caught:
            ensure_image(here, Timer())
    assert caught.value.seen == "process 4711"
    assert api.asked == []
    assert ensure_image(here, Timer()) in api.images


@pytest.mark.parametrize(
    ("says", "seen"),
    [
        (BAD, "ERROR: No matching distribution found for click; The command"),
        (GOOD[:1], "Step 1/2 : FROM base; the engine said no more"),
    ],
    ids=["fails", "ends half-way"],
)
def test_an_image_that_is_not_whole_gets_no_name(says: list[dict[str, str]], seen: str) -> None:
    here, api = engine(says, image.LOCAL_BASE, DEFAULT_TAG)
    with pytest.raises(HostError, match="could not be built") as caught:
        ensure_image(here, Timer())
    assert str(caught.value.seen).startswith(seen)
    assert [word for word, *_ in api.asked] == ["build"]


@pytest.mark.parametrize(
    ("base", "seen", "fix"),
    [
        ("", "manifest unknown", "make base-image"),
        ("refused", "no such host", "DDPLAB_BASE_IMAGE=..."),
    ],
)
def test_a_base_that_cannot_be_had_is_said_with_what_does_without(
    monkeypatch: pytest.MonkeyPatch, base: str, seen: str, fix: str
) -> None:
    monkeypatch.setenv("DDPLAB_BASE_IMAGE", base)
    here, api = engine()
    with pytest.raises(HostError, match="cannot be had") as caught:
        ensure_image(here, Timer())
    assert seen in str(caught.value.seen)
    first, second = caught.value.fix
    assert first.startswith(fix)
    assert second.startswith("BACKEND=netns")
    assert [word for word, *_ in api.asked] == ["pull"]


def test_proxies_reach_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.setenv("HTTP_PROXY", "")
    here, api = engine(GOOD, image.LOCAL_BASE)
    ensure_image(here, Timer())
    given = api.asked[0][2]
    assert given["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert given["no_proxy"] == "localhost"
    assert "HTTP_PROXY" not in given
