"""The image that nodes are made of: its name, and building it where it is not there yet.

The name tells all that it is made from, so that another Dockerfile or another pin is another image.
It is given last, to an image that is whole.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cluster.compose.engine import Engine, faults_of
from cluster.compose.file import PROJECT
from cluster.compose.wheels import Target, collect
from cluster.errors import ClusterError, HostError
from cluster.state import state_root

IMAGE = "ddplab-node"
DEFAULT_TAG = f"{IMAGE}:latest"
"""What docker-compose.yml takes by hand."""
LOCAL_BASE = "ddplab-base:bookworm"
"""What `make base-image` makes."""
DEFAULT_BASE = "python:3.11-slim-bookworm"
BASE_VARIABLE = "DDPLAB_BASE_IMAGE"
DOCKERFILE = Path("images", "Dockerfile")
CONSTRAINTS = "constraints.txt"
WHEELS = Path("images", "wheels")
SECTIONS = ("# torch", "# what else ddplab runs with", "# real clusters")
"""The parts of constraints.txt that hold what nodes run with."""
NO_IMAGE = "BACKEND=netns     needs no image"
STAGE_LABEL = "ddplab.built-by"
LOCK_FILE = "image.lock"
SILENCE_TIMEOUT_S = 600
WAIT_TIMEOUT_S = 1800.0
POLL_S = 0.2
KEPT_LINES = 40
_ABOUT = """
import ensurepip, json, os, platform, sys
print(json.dumps([sys.version_info[:2], os.uname().machine, platform.libc_ver()]))
"""


def image_name(engine: Engine) -> str:
    """The image for this checkout; it may not be there yet."""
    made_from = hashlib.sha256(base_image(engine).encode())
    for name, text in _sources(PROJECT).items():
        made_from.update(f"\n{name}\n{text}".encode())
    return f"{IMAGE}:{made_from.hexdigest()[:12]}"


def base_image(engine: Engine) -> str:
    """What the image starts from: the one asked for, one made here, or Python's own."""
    asked = os.environ.get(BASE_VARIABLE)
    return asked or (LOCAL_BASE if engine.has_image(LOCAL_BASE) else DEFAULT_BASE)


def ensure_image(
    engine: Engine,
    timed: Callable[[], AbstractContextManager[None]],
    on_line: Callable[[str], object] = str,
) -> str:
    """The image's name, once it is there. Raises HostError. One command builds, others wait.

    `timed` is entered where there is something to wait for; `on_line` hears what the build says.
    """
    name = image_name(engine)
    if not engine.has_image(name):
        with timed(), _alone():
            if not engine.has_image(name):
                _build(engine, name, on_line)
    return name


def _build(engine: Engine, name: str, on_line: Callable[[str], object]) -> None:
    base = base_image(engine)
    with faults_of(engine.host):
        _require_base(engine, base)
        target = about_base(engine, base)
    with _folder() as folder:
        _lay_out(Path(folder), target)
        with faults_of(engine.host):
            said = engine.api.build(
                path=folder,
                dockerfile=str(DOCKERFILE),
                tag=DEFAULT_TAG,
                buildargs={"BASE_IMAGE": base, "BUILT_BY": name, **_proxies(os.environ)},
                forcerm=True,
                rm=True,
                decode=True,
                timeout=SILENCE_TIMEOUT_S,
            )
            with closing(said):  # closed half-way, the engine stops as well
                built = _follow(said, on_line)
            _finish(engine.api, built, name)


def _finish(api: Any, built: str, name: str) -> None:
    """Names the image, and removes what its making left."""
    repository, _, tag = name.partition(":")
    api.tag(built, repository, tag)
    api.prune_images({"dangling": True, "label": f"{STAGE_LABEL}={name}"})


@contextmanager
def _folder() -> Iterator[str]:
    """A folder to build from. What commands left that were killed is removed: call it alone."""
    prefix = f"ddplab-image-{os.geteuid()}-"
    try:
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield folder
    except OSError as exc:
        raise HostError(
            "the nodes' image could not be prepared",
            "its packages, about 250 MB, lie in a temporary folder until it is built",
            ("TMPDIR=...     names another folder", NO_IMAGE),
            seen=str(exc),
        ) from exc


def _lay_out(context: Path, target: Target) -> None:
    """Writes what the build gets to see, and nothing else."""
    sources = _sources(PROJECT)
    (context / WHEELS).mkdir(parents=True)
    for path, text in sources.items():
        (context / path).write_text(text)
    pins = [line for line in sources[CONSTRAINTS].splitlines() if "==" in line]
    collect(pins, target, context / WHEELS)


def _sources(project: Path) -> dict[str, str]:
    """The files that the image is made from, each with no more in it than counts."""
    document = tomllib.loads((project / "pyproject.toml").read_text())
    project_keys = document["project"]
    needs = json.dumps(project_keys["dependencies"])
    ray = json.dumps(project_keys["optional-dependencies"]["ray"])
    return {
        CONSTRAINTS: node_pins((project / CONSTRAINTS).read_text()),
        "pyproject.toml": f"[project]\ndependencies = {needs}\n"
        f"[project.optional-dependencies]\nray = {ray}\n",
        str(DOCKERFILE): (project / DOCKERFILE).read_text(),
    }


def node_pins(constraints: str) -> str:
    """The part of constraints.txt that is about what nodes run with."""
    parts = constraints.split("\n\n")
    return "\n\n".join(part.strip() for part in parts if part.startswith(SECTIONS)) + "\n"


def _require_base(engine: Engine, base: str) -> None:
    """Gets the image to start from, where it is not there."""
    if engine.has_image(base):
        return
    from docker.errors import APIError

    told: Any = None
    try:
        for part in engine.api.pull(base, stream=True, decode=True):
            told = part.get("error", told)
    except APIError as exc:
        told = exc.explanation
    if told is None:
        return
    other = f"{BASE_VARIABLE}=...     names another one"
    if base in (LOCAL_BASE, DEFAULT_BASE):
        other = "make base-image     makes one here, and asks no image registry"
    raise HostError(
        f"the image {base} cannot be had",
        "the nodes' image is made from it",
        (other, NO_IMAGE),
        seen=" ".join(str(told).split())[:300],
    )


def about_base(engine: Engine, base: str) -> Target:
    """Which Python is in the image to start from. Raises HostError."""
    from docker.errors import APIError

    settings = engine.api.create_host_config(network_mode="none")
    command = ["python3", "-I", "-c", _ABOUT]
    made = None
    try:
        made = engine.api.create_container(base, command, entrypoint="", host_config=settings)
        engine.api.start(made["Id"])
        engine.api.wait(made["Id"])
        told = engine.api.logs(made["Id"]).decode(errors="replace")
    except APIError as exc:
        told = str(exc.explanation)
    finally:
        if made is not None:
            engine.api.remove_container(made["Id"], force=True)
    try:
        version, machine, (libc, libc_version) = json.loads(told)
        major, minor = libc_version.split(".")[:2]
    except ValueError:
        libc = None
    if libc != "glibc" or tuple(version) < (3, 11):
        raise HostError(
            f"the image {base} cannot be that of a node",
            "it has python3, 3.11 or newer, with venv and pip, and the GNU C library",
            (f"{BASE_VARIABLE}={DEFAULT_BASE}", "make base-image"),
            seen=" ".join(told.split())[-300:],
        )
    return Target((version[0], version[1]), machine, (int(major), int(minor)))


def _follow(said: Iterable[Mapping[str, Any]], on_line: Callable[[str], object]) -> str:
    """The image that an engine built, by what it says. Raises HostError with what tells why not."""
    lines: list[str] = []
    error = "the engine said no more"
    for part in said:
        for line in str(part.get("stream", "")).splitlines():
            on_line(line)
            lines = [*lines, line.strip()][-KEPT_LINES:]
        error = str(part.get("error", error))
    told = [line for line in lines if line]
    for line in told:
        if built := re.fullmatch("Successfully built ([0-9a-f]+)", line):
            return built[1]
    why = [line for line in told if line.startswith(("ERROR:", "E:"))] or told
    raise HostError(
        "the nodes' image could not be built",
        "it is built once, from images/Dockerfile",
        (f"{sys.executable} -m cluster.compose.image     shows all of it", NO_IMAGE),
        seen="; ".join([*why[-3:], error])[:600],
    )


def _proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """For what the build itself downloads; no image keeps these."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    both = [*names, *(name.lower() for name in names)]
    return {name: environ[name] for name in both if environ.get(name)}


@contextmanager
def _alone() -> Iterator[None]:
    """One of this user's commands at a time; the kernel frees it when that one dies.

    Not in XDG_RUNTIME_DIR: images are the machine's, whatever that is set to.
    """
    path = state_root({}, os.geteuid()) / LOCK_FILE
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while not _locked(file):
            if time.monotonic() > deadline:
                raise HostError(
                    "another command does not come to an end with the nodes' image",
                    f"one at a time builds it, and others wait for {WAIT_TIMEOUT_S / 60:g} minutes",
                    ("end that command", NO_IMAGE),
                    seen=f"process {os.pread(file, 20, 0).decode()}",
                )
            time.sleep(POLL_S)
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> int:
    """Builds it now, and shows all that the build says."""
    try:
        name = ensure_image(
            Engine.connect(), nullcontext, lambda line: sys.stderr.write(line + "\n")
        )
    except ClusterError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
