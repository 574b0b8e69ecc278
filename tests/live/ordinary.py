"""Runs a script of ours as an ordinary user: as this one, or, for root, as a user with no name.

The script sees copies of the packages it needs in a folder that everybody can read.
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

UID = 54321
NEEDED = (
    "annotated_types",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
    "yaml",
    "_yaml",
)
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


@dataclass(frozen=True)
class OrdinaryUser:
    """An ordinary user with a folder of its own; `python` runs, and finds our packages."""

    uid: int
    home: Path
    python: str
    groups: tuple[int, ...] = ()

    def start(self, script: str, *words: str) -> "subprocess.Popen[str]":
        """Starts a script as this user, in a session of its own."""
        identity = {"user": self.uid, "group": self.uid, "extra_groups": list(self.groups)}
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            [self.python, "-c", script, *words],
            cwd=self.home,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.home),
                "PYTHONPATH": str(self.home / "packages"),
                "XDG_RUNTIME_DIR": str(self.home / "run"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **(identity if os.geteuid() == 0 else {}),
        )

    def run(self, script: str, *words: str) -> str:
        """What a script prints; it must succeed."""
        with self.start(script, *words) as process:
            try:
                out, err = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        assert process.returncode == 0, out + err
        return out


@contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Skips, with the reason, where no interpreter can be read by an ordinary user."""
    uid = UID if os.geteuid() == 0 else os.geteuid()
    home = Path(tempfile.mkdtemp(prefix="ddplab-test-", dir="/tmp"))
    try:
        _copy_packages(home / "packages")
        (home / "run").mkdir(mode=0o700)
        for path in (home, home / "run"):
            path.chmod(0o755 if path == home else 0o700)
            if os.geteuid() == 0:
                os.chown(path, uid, uid)
        yield OrdinaryUser(uid, home, _readable_python(uid, home))
    finally:
        shutil.rmtree(home)


def _copy_packages(target: Path) -> None:
    target.mkdir(mode=0o755)
    shutil.copytree(ROOT / "cluster", target / "cluster")
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        origin = Path(spec.origin)
        if spec.submodule_search_locations:
            shutil.copytree(origin.parent, target / name)
        else:
            shutil.copy(origin, target)


def _readable_python(uid: int, home: Path) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, "/usr/bin/python3", f"/usr/bin/python{version}"):
        script = "import sys, cluster.lab; print('%d.%d' % sys.version_info[:2])"
        try:
            if OrdinaryUser(uid, home, python).run(script).strip() == version:
                return python
        except (OSError, AssertionError):
            continue
    pytest.skip(f"an ordinary user can run no Python {version} here")
