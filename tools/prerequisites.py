"""What must be on the machine before anything is built: a Python and four commands.

Finds them, and names what is missing in one line for apt. Installs nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NamedTuple

from tools.errors import FrontDoorError

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
OLDEST = (3, 11)
_CANDIDATES = (
    "python3", "/usr/bin/python3", "python3.14", "python3.13", "python3.12", "python3.11",
)  # fmt: skip
_QUESTION = """\
import sys
print(getattr(sys, "_base_executable", sys.executable))
print(*sys.version_info[:3], sep=".")
try:
    import ensurepip, venv
except ImportError as error:
    print(error.name)
"""


class Interpreter(NamedTuple):
    """A Python that answered: `lacks` names a module it needs to make environments."""

    path: str
    version: str
    lacks: str = ""

    @property
    def is_new_enough(self) -> bool:
        return tuple(int(part) for part in self.version.split(".")[:2]) >= OLDEST


def find(chosen: str) -> Interpreter:
    """The Python to build with: `chosen`, or the first that will do. Raises if anything lacks."""
    found = answers(chosen)
    ready = [one for one in found if one.is_new_enough and not one.lacks]
    new_enough = [one for one in found if one.is_new_enough]
    packages = [PACKAGES[command] for command in PACKAGES if not _has(command)]
    if not new_enough:
        raise _too_old(chosen, found)
    if not ready:
        packages.insert(0, venv_package(new_enough[0]))
    if packages:
        raise _missing(packages, new_enough[0] if not ready else None)
    return ready[0]


def answers(chosen: str) -> list[Interpreter]:
    """What `chosen`, or else each Python that may be there, says of itself; those that start."""
    asked = [ask(chosen)] if chosen else [ask(name) for name in _CANDIDATES]
    return [answer for answer in asked if answer is not None]


def ask(name: str) -> Interpreter | None:
    """What `name` says of itself; None where it does not start."""
    try:
        answer = subprocess.run(
            [name, "-I", "-c", _QUESTION], capture_output=True, text=True, timeout=30, check=True
        )
        return Interpreter(*answer.stdout.splitlines())
    except (OSError, subprocess.SubprocessError, TypeError):
        return None


def _has(command: str) -> bool:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # not on every user's path
    return shutil.which(command, path=path) is not None


def venv_package(interpreter: Interpreter) -> str:
    """What Debian and Ubuntu call the rest of this Python."""
    if interpreter.path == os.path.realpath("/usr/bin/python3") or (
        interpreter.path == "/usr/bin/python3"
    ):
        return "python3-venv"
    return "python{}.{}-venv".format(*interpreter.version.split("."))


def _missing(packages: list[str], interpreter: Interpreter | None) -> FrontDoorError:
    names = " ".join(dict.fromkeys(packages))
    commands = [command for command in PACKAGES if not _has(command)]
    seen = [f"no {' '.join(commands)} on the search path"] if commands else []
    if interpreter is not None:
        seen.append(f"{interpreter.path} ({interpreter.version}) has no module {interpreter.lacks}")
    sudo = "" if os.geteuid() == 0 else "sudo "
    return FrontDoorError(
        "something that Debian and Ubuntu have as a package is missing.",
        seen="\n".join(seen),
        rule="needed: make, Python 3.11 or newer with venv, iproute2, util-linux",
        fix=f"{sudo}apt-get install {names}",
        note="Nothing was created.    docs/troubleshooting.md#missing-packages",
    )


def _too_old(chosen: str, found: list[Interpreter]) -> FrontDoorError:
    if chosen and not found:
        seen = f"PYTHON={chosen}, which does not start"
    else:
        unique = dict.fromkeys(f"{one.path} ({one.version})" for one in found)
        seen = "\n".join(unique) or "no Python that starts"
    return FrontDoorError(
        "there is no Python that is new enough.",
        seen=seen,
        rule="ddplab needs Python 3.11 or newer",
        fix="install one (Ubuntu 22.04: sudo apt-get install python3.11 python3.11-venv), then\n"
        "make setup PYTHON=python3.11",
        note="Nothing was created.    docs/troubleshooting.md#missing-packages",
    )
