"""This machine less one thing: really taken away, in namespaces that the asked program is in."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.doctor.checks import Check
from tests.live.host import PATH

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60
ASK = """\
import json, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from cluster.doctor.host import Asked, host_checks
from cluster.doctor.room import Size
from jobs.doctor import EXPORTER
home = Path({home!r})
asked = Asked(home, home / "runs", Size(2, 2), {netem_for!r})
print(json.dumps(list(host_checks(asked, EXPORTER))))
"""


@dataclass(frozen=True)
class Machine:
    """Asks what the machine lacks, for a checkout in `home`, after `taken` away what it says."""

    home: Path

    def lacks(
        self, taken: str, netem_for: str = "", path: str = PATH, under: Sequence[str] = ()
    ) -> dict[str, Check]:
        """All checks by name.

        `taken` is a shell script run before, as root of the namespaces; `under` are words before
        the program that asks.
        """
        script = ASK.format(root=str(ROOT), home=str(self.home), netem_for=netem_for)
        program = shlex.join([*under, sys.executable, "-I", "-S", "-c", script])
        done = self.run(f"set -e\n{taken}\nexec {program}", path)
        assert done.returncode == 0, done.stdout + done.stderr
        found = [
            Check(name, state, seen, tuple(fix))
            for name, state, seen, fix in json.loads(done.stdout)
        ]
        return {check.name: check for check in found}

    def run(self, script: str, path: str = PATH) -> "subprocess.CompletedProcess[str]":
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return subprocess.run(
            ["unshare", *user, *spaces, "sh", "-c", script],
            cwd=self.home,
            env={**os.environ, "PATH": path, "XDG_RUNTIME_DIR": str(self.home / "state")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def without(commands: Sequence[str]) -> str:
    """Takes commands away: what lies in their place cannot be run."""
    hide = (
        "for found in $(command -v -- {name}) /usr/sbin/{name} /usr/bin/{name} /sbin/{name}; do\n"
    )
    hide += '  if [ -x "$found" ]; then mount --bind /dev/null "$found"; fi\ndone\n'
    return "".join(hide.format(name=name) for name in commands)


def pretending(folder: Path, command: str, word: str, says: str) -> str:
    """A PATH on which `command` knows no `word`, and is the real one otherwise."""
    folder.mkdir()
    real = "$(PATH=" + shlex.quote(PATH) + f" command -v {command})"
    stub = folder / command
    stub.write_text(
        f'#!/bin/sh\ncase " $* " in *" {word} "*) echo {shlex.quote(says)} >&2; exit 2 ;; esac\n'
        f'exec {real} "$@"\n'
    )
    stub.chmod(0o755)
    return f"{folder}:{PATH}"
