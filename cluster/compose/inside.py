"""What is started in a container, and as whom: the docker command is the client of it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from cluster.batch import run_batch
from cluster.compose.engine import Engine, docker_command
from cluster.compose.file import PROJECT
from cluster.errors import HostError, NamespacesRefused
from cluster.holding import user_name

HOME = "/home/ddplab"
NOBODY = (65534, 65534)
READABLE = 0o5
"""What others must be allowed to do with a folder for nobody to see what is in it."""


def rank_user() -> tuple[int, int]:
    """User and group of what runs in nodes: this user's; never root's, who is nobody there."""
    own = os.geteuid(), os.getegid()
    return own if own[0] != 0 else NOBODY


def readable(path: Path) -> bool:
    """Whether programs in nodes can read what is in this folder."""
    return os.geteuid() != 0 or path.stat().st_mode & READABLE == READABLE


def require_readable(path: Path) -> None:
    """Raises HostError unless programs in nodes can read what is in this folder."""
    if not readable(path):
        raise HostError(
            f"{path} can be read by root alone",
            "programs in the nodes do not run as root: they are nobody's where root starts them",
            (f"chmod -R o+rX {path}", "type it as an ordinary user"),
        )


def as_root(engine: Engine, identity: str, commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What commands write that the container's root runs, who may limit links and nothing else."""
    client = [docker_command(), "--host", engine.host, "exec", "--interactive"]
    try:
        return run_batch([*client, "--user", "0:0", identity, "sh"], commands)
    except NamespacesRefused as exc:
        raise HostError(
            "a container may not limit its own links",
            "it has the right to (NET_ADMIN); something on this machine keeps it from using it",
            "look at: docker info, and the kernel's log",
            seen=exc.seen or exc.message,
        ) from exc


def start(
    engine: Engine,
    identity: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    stderr: IO[bytes] | None,
) -> "subprocess.Popen[bytes]":
    """Starts a program in a container as the ranks' user, without any rights."""
    words = ["--user", "{}:{}".format(*rank_user()), "--workdir", cwd or str(PROJECT)]
    for name, value in {**_environment(), **env}.items():
        words += ["--env", f"{name}={value}"]
    return subprocess.Popen(
        [docker_command(), "exec", "--interactive", *words, identity, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if stderr is None else stderr,
        env=engine.environment,
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    return {
        "HOME": HOME,
        "USER": user_name(),
        "TMPDIR": "/tmp",
        "PYTHONSAFEPATH": "1",  # a folder called jobs or cluster in `cwd` must not be ours
        "PYTHONPATH": str(PROJECT),
    }
