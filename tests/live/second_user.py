"""A lab of another user of this machine: `ddplab` as an ordinary user that has no name.

Where the tests are not root's there is no other user to be had: then it is the same one, with
another state folder.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.lab import ROOT, TestLab
from tests.live.ordinary import UID

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class UsersLab(TestLab):
    """Runs the command as the other user, who sees the project and its packages in `home`."""

    __test__ = False

    def environment(self) -> dict[str, str]:
        places = [self.home / "project", self.home / "packages"] if os.geteuid() == 0 else [ROOT]
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "state"),
            "PYTHONPATH": os.pathsep.join(map(str, places)),
        }

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Another user's is a process of its own."""
        return self.process(*words)

    def argv(self, *words: str) -> list[str]:
        if os.geteuid() != 0:
            return super().argv(*words)
        mounts = [f"mount --bind '{source}' '{self.home / name}'" for name, source in _seen()]
        identity = f"setpriv --reuid {UID} --regid {UID} --clear-groups --inh-caps=-all"
        script = " && ".join([*mounts, f'exec {identity} "$@"'])
        command = [str(self.home / "python" / "bin" / PYTHON), "-m", "jobs.cli", *words]
        return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


def _seen() -> tuple[tuple[str, Path], ...]:
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    packages = Path(torch.origin).parents[1]
    return ("project", ROOT), ("packages", packages), ("python", Path(sys.base_prefix))


@contextmanager
def second_user(name: str) -> Iterator[UsersLab]:
    """The lab is not up yet; all of it is taken down afterwards."""
    home = Path(tempfile.mkdtemp(prefix="ddplab-test-", dir="/tmp"))
    try:
        for folder in ("state", "runs", "project", "packages", "python"):
            (home / folder).mkdir(mode=0o700 if folder == "state" else 0o755)
        home.chmod(0o755)
        if os.geteuid() == 0:
            for path in (home, *home.iterdir()):
                os.chown(path, UID, UID)
        it = UsersLab(name, home)
        done = it.command("status", "--json")
        if done.returncode:
            pytest.skip(f"another user can run no ddplab here: {done.stderr[-300:]}")
        yield it
        it.command("down", "--lab", name)
    finally:
        shutil.rmtree(home)
