"""What comes before any environment: Python, its venv, what stands in .venv, the way to packages.

Hands over to the command where an environment works; else shows what can be asked without one.
Readable by any Python 3, and needs the standard library only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, WARNING, Check, has_fault
from cluster.packages import Package, install, install_commands
from jobs.report.doctor_screen import check_lines, closing_lines
from tools import prerequisites
from tools.build import TORCH_INDEX_URL
from tools.environment import current, fits, held, read
from tools.errors import FrontDoorError
from tools.prerequisites import OLDEST, Interpreter

ANSWER_S = 5.0
ENVIRONMENT_BYTES = 2_000_000_000
"""What a set-up takes, with what it downloads."""
IMPORTED = "import click, pydantic, yaml, rich, jobs.cli"
IMPORT_TIMEOUT_S = 60
ANEW = "rm -r .venv .venvs && make setup"
HELP = "see docs/troubleshooting.md#missing-packages"
WIDTH = 100
PRIVILEGES = ("none", "sudo")


class Found(NamedTuple):
    """What was seen before the command takes over: `environment` works, or is None."""

    environment: Path | None
    checks: list[Check]

    def option(self) -> str:
        """How the command is told."""
        return f"--before={json.dumps(self.checks)}"


def look(root: Path) -> Found:
    """Python, venv and the environment. Where this Python is too old, another one goes on."""
    strange = None
    try:
        folder = current(root)
    except FrontDoorError as problem:
        folder, strange = None, problem
    made = read(folder) if folder else None
    interpreters = prerequisites.answers(made.choice.python if made else "")
    _go_on_with_a_newer_one(interpreters)
    checks = [python_check(interpreters), venv_check(interpreters, needed=folder is None)]
    if strange is not None:
        seen, _, fix = (text for _, text in strange.rows)
        return Found(None, [*checks, Check("environment", FAULT, seen, (fix,))])
    if folder is None:
        return Found(None, [*checks, absent_check(root), way_check(TORCH_INDEX_URL)])
    why = why_not(folder, root)
    checks.append(environment_check(why, fits(folder, root, "run", {})))
    return Found(folder if not why and held(folder) else None, checks)


def alone(root: Path, checks: list[Check], cluster: str, privilege: str) -> int:
    """The list without an environment, a line as soon as it is known. Returns the exit status.

    Raises FrontDoorError for what cannot be asked about.
    """
    size = size_of(root, cluster)
    check_privilege(privilege)
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    sys.stdout.write(f"Trying what {cluster} needs of this machine. About 3 s.\n\n")
    found = []
    for check in _all(checks, size, privilege):
        found.append(check)
        sys.stdout.writelines(f"{text}\n" for text, _ in check_lines(check, width))
        sys.stdout.flush()
    options = "" if cluster == "2x2" else f" CLUSTER={cluster}"
    sys.stdout.writelines(f"{text}\n" for text, _ in closing_lines(found, options, width))
    return 1 if has_fault(found) else 0


def _all(checks: list[Check], size: tuple[int, int], privilege: str) -> Iterator[Check]:
    yield from checks
    if sys.version_info < OLDEST:
        yield commands_check()
        yield Check("the rest", SKIPPED, "it needs Python 3.11 or newer")
        return
    from cluster.doctor.room import Size
    from jobs.doctor import alone as without_environment

    yield from without_environment(Size(*size), Path("runs"), privilege)


def size_of(root: Path, cluster: str) -> tuple[int, int]:
    """Nodes, and ranks of each, as a cluster's file says; one of each where it does not.

    Raises FrontDoorError where it is neither of the catalog nor a file that can be read.
    """
    ready = root / "cluster" / "catalog" / f"{cluster}.yaml"
    try:
        text = (ready if ready.is_file() else Path(cluster).expanduser()).read_text("utf-8")
    except (OSError, ValueError, RuntimeError) as problem:  # RuntimeError: ~ of nobody
        raise _no_cluster(root, cluster, problem) from problem
    found = [re.search(rf"^{key}:\s*(\d+)", text, re.M) for key in ("nodes", "ranks_per_node")]
    nodes, ranks = (int(match[1]) if match else 1 for match in found)
    return nodes, ranks


def _no_cluster(root: Path, cluster: str, problem: Exception) -> FrontDoorError:
    names = sorted(path.stem for path in (root / "cluster" / "catalog").glob("*.yaml"))
    nearest = (get_close_matches(cluster, names, n=1, cutoff=0.5) or ["2x2"])[0]
    return FrontDoorError(
        f'"{cluster}" is no cluster that can be read.',
        seen=f"CLUSTER={quote(cluster)}: {getattr(problem, 'strerror', None) or problem}",
        rule=f"a cluster is one of {' '.join(names)}, or a file ending in .yaml",
        fix=f"make doctor CLUSTER={nearest}",
    )


def check_privilege(privilege: str) -> None:
    """Raises FrontDoorError for one that the command would refuse."""
    if privilege not in PRIVILEGES:
        raise FrontDoorError(
            f'"{privilege}" is no privilege.',
            seen=f"PRIVILEGE={quote(privilege)}",
            rule=f"PRIVILEGE is {' or '.join(PRIVILEGES)}",
            fix="leave PRIVILEGE out, or make doctor PRIVILEGE=sudo",
        )


def python_check(interpreters: list[Interpreter]) -> Check:
    new_enough = [one for one in interpreters if one.is_new_enough]
    if new_enough:
        one = next((one for one in new_enough if not one.lacks), new_enough[0])
        return Check("python", OK, f"{one.version}, {one.path}")
    unique = dict.fromkeys(f"{one.version} ({one.path})" for one in interpreters)
    seen = f"only {', '.join(unique)}" if unique else "none that starts"
    name = "python{}.{}".format(*OLDEST)
    fix = [
        f"{each} && make setup PYTHON={name}"
        for each in install([Package(f"{name} {name}-venv", name)])
    ]
    return Check("python", FAULT, f"{seen}: 3.11 or newer is needed", (*fix, HELP))


def venv_check(interpreters: list[Interpreter], needed: bool) -> Check:
    """`needed`: there is no environment yet."""
    new_enough = [one for one in interpreters if one.is_new_enough]
    if not new_enough:
        return Check("venv", SKIPPED, "it needs Python 3.11 or newer")
    if any(not one.lacks for one in new_enough):
        return Check("venv", OK, "this Python can make environments")
    one = new_enough[0]
    seen = f"{one.path} ({one.version}) has no module {one.lacks}"
    fix = install([Package(prerequisites.venv_package(one), "python3")])
    return Check("venv", FAULT if needed else WARNING, seen, (*fix, HELP))


def absent_check(root: Path) -> Check:
    """What it takes to make the environment."""
    free_bytes = shutil.disk_usage(root).free
    if free_bytes < ENVIRONMENT_BYTES:
        seen = f"not made yet, and only {free_bytes / 1e6:.0f} MB are free here"
        return Check(
            "environment", FAULT, seen, ("free about 2 GB here and in the temporary folder",)
        )
    seen = "not made yet: the first make cluster-up makes it (about a minute; 220 MB to download)"
    return Check("environment", NOT_HERE, seen, ("make setup",))


def why_not(folder: Path, root: Path) -> str:
    """Why what the command needs cannot be imported there; empty where it can."""
    python = str(folder / "bin" / "python")
    try:
        done = subprocess.run(
            [python, "-E", "-s", "-c", IMPORTED],
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    if done.returncode == 0:
        return ""
    return done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"


def environment_check(why: str, is_fitting: bool) -> Check:
    """`why` it does not work, if so; whether it was made from what lies here."""
    if not is_fitting:
        seen = ".venv was made from other files or another Python: the next make makes it anew"
        return Check("environment", WARNING, f"{seen} ({why})" if why else seen, ("make setup",))
    if why:
        return Check("environment", FAULT, f".venv does not work: {why}", (ANEW,))
    return Check("environment", OK, ".venv, made from what lies here")


def way_check(url: str) -> Check:
    """Whether the place that PyTorch comes from answers; pip may know others."""
    said: list[str] = []
    asking = threading.Thread(target=_ask, args=(url, said), daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    host = url.split("/")[2]
    if said == [""]:
        return Check("network", OK, f"{host} answers, where PyTorch comes from")
    why = said[0] if said else f"no answer within {ANSWER_S:g} s"
    seen = f"{host} cannot be reached ({why}): PyTorch must come from pip's own sources"
    mirror = "make setup TORCH_INDEX_URL=...     behind a mirror"
    return Check(
        "network", WARNING, seen, (mirror, "see docs/troubleshooting.md#pytorch-does-not-come")
    )


def commands_check() -> Check:
    """As the command would make it, for a Python that is too old for the command."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    missing = [name for name in prerequisites.PACKAGES if shutil.which(name, path=path) is None]
    if missing:
        seen = f"no {' '.join(missing)} on the search path"
        return Check("commands", FAULT, seen, install_commands(missing))
    return Check("commands", OK, " ".join(prerequisites.PACKAGES))


def _go_on_with_a_newer_one(interpreters: list[Interpreter]) -> None:
    ready = [one.path for one in interpreters if one.is_new_enough and not one.lacks]
    if sys.version_info < OLDEST and ready:
        os.execv(ready[0], [ready[0], "-E", "-s", "-S", "-m", "tools.front", *sys.argv[1:]])


def _ask(url: str, said: list[str]) -> None:
    """Says `""` for any answer, or why there is none."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_S).close()
        said.append("")
    except urllib.error.HTTPError:
        said.append("")
    except (OSError, ValueError) as problem:
        said.append(str(getattr(problem, "reason", problem)))
