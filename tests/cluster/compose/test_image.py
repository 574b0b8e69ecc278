"""Building the nodes' image: once, from what it needs, and a half one never gets its name."""

import fcntl
import os
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from cluster.compose import image
from cluster.compose.image import DEFAULT_TAG, ensure_image, image_name
from cluster.errors import HostError
from tests.cluster.compose.fake_engine import BAD, GOOD, engine

pytestmark = pytest.mark.usefixtures("checkout")
ROOT = Path(__file__).parents[3]


class Timer:
    """Counts how often somebody had to wait."""

    def __init__(self) -> None:
        self.num_waits = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.num_waits += 1
        yield


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
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ray = {"ray": whole["optional-dependencies"]["ray"]}
    needed = {"dependencies": whole["dependencies"], "optional-dependencies": ray}
    assert tomllib.loads(api.context["pyproject.toml"]) == {"project": needed}


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
