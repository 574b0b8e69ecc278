"""Where the environment is: `.venv` is a link to a finished folder in `.venvs/`, or is absent.

Decides whether that one still fits, and switches the link when a new one is finished. A folder is
built under the path it will keep (an environment cannot be moved), so there is never a half one
behind the link: killing a set-up at any moment leaves the link as it was. Does not talk to pip.

    .venvs/lock            held while one is built; the kernel frees it when the builder dies
    .venvs/<n>/            an environment; a process that runs from it holds a shared lock on it
    .venvs/<n>/made-from/  copies of what it was made from, compared byte by byte
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tools.errors import FrontDoorError

SOURCES = ("pyproject.toml", "constraints.txt")
LAYERS = {
    "run": ("server", "docker"),
    "ray": ("server", "docker", "ray", "gpu"),
    "dev": ("server", "docker", "ray", "gpu", "dev"),
}
"""The extras of each kind of environment; each does what those before it do."""


class Choice(NamedTuple):
    """What a person chose at `make setup`; remembered by the environment. Empty: as pinned here."""

    torch: str = ""
    torch_index_url: str = ""
    python: str = ""

    @staticmethod
    def typed(given: dict[str, str]) -> dict[str, str]:
        """The part of `given` that is a choice, by the names used here."""
        names = [name for name in given if name.lower() in Choice._fields]
        return {name.lower(): given[name] for name in names}

    def changed(self, typed: dict[str, str]) -> Choice:
        """This choice with what was typed now; TORCH=default drops earlier choices of torch."""
        if typed.get("torch") == "default":
            index_url = typed.get("torch_index_url", "")
            return Choice("", index_url, typed.get("python", self.python))
        return self._replace(**typed)


class Made(NamedTuple):
    """What a finished environment was made from."""

    choice: Choice
    layer: str
    checkout: str
    version: str
    sources: tuple[bytes, ...]


def ensure(root: Path, layer: str, typed: dict[str, str]) -> Path:
    """The finished environment, made now if there is none that fits; held until this process ends.

    `typed`: what was chosen on this command line; what was not stays as it was chosen before.
    """
    while True:
        environment = current(root)
        if environment is None or not fits(environment, root, layer, typed):
            _make(root, layer, typed)
            typed = {}  # it was just made so
        elif held(environment):
            return environment


def higher(layer: str, other: str) -> str:
    """The one of two layers that does what both do; one that is unknown is the lower."""
    order = ["", *LAYERS]
    known = [each for each in (layer, other) if each in order]
    return max(known, key=order.index, default="")


def current(root: Path) -> Path | None:
    """The folder behind `.venv`, or None; FrontDoorError when `.venv` is somebody else's."""
    link = root / ".venv"
    is_ours = link.is_symlink() and link.resolve().parent == root.resolve() / ".venvs"
    if os.path.lexists(link) and not is_ours:
        raise FrontDoorError(
            "there is a .venv here that make did not make.",
            seen=f"{link} is not a link into .venvs",
            rule=".venv is where make puts the environment; it does not touch one of yours",
            fix="mv .venv .venv-mine",
        )
    try:
        environment = link.resolve(strict=True)
    except OSError:
        return None
    return environment if os.access(environment / "bin" / "python", os.X_OK) else None


def fits(environment: Path, root: Path, layer: str, typed: dict[str, str]) -> bool:
    """Whether it was made from what lies here now, in this place, with this choice."""
    made = read(environment)
    if made is None or made.checkout != str(root.resolve()) or made.sources != sources(root):
        return False
    if made.choice.changed(typed) != made.choice:
        return False
    if Path(sys.prefix).resolve() == environment and made.version != version():
        return False  # the system's Python was upgraded underneath it
    return higher(made.layer, layer) == made.layer


def read(environment: Path) -> Made | None:
    """What is written in `made-from`; None for one that was never finished."""
    folder = environment / "made-from"
    try:
        words = (folder / "choice").read_text("utf-8").split("\n")
        layer, checkout, version = words[3:6]
        return Made(Choice(*words[:3]), layer, checkout, version, sources(folder))
    except (OSError, TypeError, ValueError):
        return None


def write(environment: Path, made: Made) -> None:
    """Record what `environment` was made from."""
    folder = environment / "made-from"
    folder.mkdir()
    for number, name in enumerate(SOURCES):
        (folder / name).write_bytes(made.sources[number])
    words = [*made.choice, made.layer, made.checkout, made.version, ""]
    (folder / "choice").write_text("\n".join(words), "utf-8")


def sources(folder: Path) -> tuple[bytes, ...]:
    """The files whose change asks for a new environment."""
    return tuple((folder / name).read_bytes() for name in SOURCES)


def version() -> str:
    """This Python's version as far as installed packages depend on it, such as "3.11"."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _make(root: Path, layer: str, typed: dict[str, str]) -> None:
    from tools.build import build  # only a set-up needs it

    folder = root / ".venvs"
    with _writable(folder):
        folder.mkdir(exist_ok=True)
        with _alone(folder / "lock"):
            earlier = current(root)
            if earlier is not None and fits(earlier, root, layer, typed):
                return
            environment = folder / _next_name(folder)  # never the path of one just killed
            _sweep(folder, earlier)
            before = read(earlier) if earlier is not None else None
            choice = (before.choice if before else Choice()).changed(typed)
            own = higher(layer, before.layer) if before is not None else layer
            try:
                build(root, environment, own, choice)
                _switch(root / ".venv", environment)
            except BaseException:
                _remove(environment)
                raise
            _sweep(folder, environment.resolve())


def _switch(link: Path, environment: Path) -> None:
    fresh = environment.with_name("next")
    with suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(Path(environment.parent.name) / environment.name)
    fresh.replace(link)  # atomic: the link is the old one or the new one


def _sweep(folder: Path, keep: Path | None) -> None:
    """Remove every environment but `keep`, unless somebody runs from it."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.resolve() != keep:
            descriptor = os.open(entry, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(entry)
            except BlockingIOError:
                pass  # still in use: the next set-up removes it
            finally:
                os.close(descriptor)


def _remove(environment: Path) -> None:
    from shutil import rmtree  # only a set-up needs it, and it is slow to import

    rmtree(environment, ignore_errors=True)


def held(environment: Path) -> bool:
    """Keep the environment from being swept while this process, or what it becomes, lives."""
    try:
        descriptor = os.open(environment, os.O_RDONLY)
    except OSError:
        return False  # swept since we looked
    with suppress(OSError):  # a file system without locks: then nothing keeps it but luck
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.set_inheritable(descriptor, True)
    return os.access(environment / "bin" / "python", os.X_OK)


def _next_name(folder: Path) -> str:
    return str(1 + max((int(e.name) for e in folder.iterdir() if e.name.isdigit()), default=0))


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One set-up at a time; the second waits for the first and then finds its work done."""
    with lock.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = file.read().strip() or "unknown"
            sys.stderr.write(f"ddplab: process {other} is making the environment: waiting for it\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise FrontDoorError(
            "the environment is somebody else's to change.",
            seen=str(error),
            rule=f"whoever owns this checkout makes its environment, in {folder}",
            fix="clone it into a folder of your own; or, if it is yours: sudo rm -r .venv .venvs",
        ) from error
