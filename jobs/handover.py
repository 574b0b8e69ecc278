"""What ranks need of this machine's files, and as whom: looked at before any of them starts.

Owns what nodes must see and what they may write to. Whether the files are of use is `inputs`'.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Timer

from cluster.nodes import NodeProcess, Nodes
from jobs.errors import LaunchError
from jobs.modelspec import OwnSpec
from jobs.owncode import own_paths
from jobs.runfolder import RunFolder
from jobs.runinfo import PROJECT
from jobs.spec import JobSpec

TIMEOUT_S = 20.0
CLOSED = """
for path; do
    if [ -d "$path" ]; then [ -r "$path" ] && [ -x "$path" ]; else [ -r "$path" ]; fi ||
    printf '%s\\0' "$path"
done
"""
"""A shell script that writes those of its arguments that it may not read, each with a zero byte."""


def require_seen(nodes: Nodes, runs: Path, jobs: Iterable[JobSpec]) -> None:
    """Raises HostError or LaunchError where programs in the nodes lack what these jobs need."""
    named = list(dict.fromkeys(_named_files(jobs)))
    if nodes.shares_files:
        runs = runs.resolve()  # under this name ranks write to it
        nodes.require_visible(runs, writable=True)
        named.insert(0, PROJECT)
    for path in named:
        nodes.require_visible(path)
    if nodes.user[0] != os.geteuid():
        _require_open(nodes, [*named, *([runs] if runs.is_dir() else [])])


def hand_over(folder: RunFolder, nodes: Nodes) -> None:
    """Lets ranks write into a run's folder, where they run as somebody else than we do."""
    if nodes.shares_files and nodes.user[0] != os.geteuid():
        os.chown(folder.path, *nodes.user)


def _named_files(jobs: Iterable[JobSpec]) -> Iterator[Path]:
    for job in jobs:
        if job.data.path is not None:
            yield Path(job.data.path).absolute()
        if isinstance(job.model, OwnSpec):
            yield job.model.path.absolute()
        yield from own_paths(job.ddp)


def _require_open(nodes: Nodes, paths: Sequence[Path]) -> None:
    """Raises LaunchError for what is closed to ranks, asked in a node as one of them."""
    process = nodes.exec(
        nodes.list()[0], ["sh", "-c", CLOSED, "sh", *(str(path) for path in paths)], cwd="/"
    )
    said = _answer(process)
    if closed := [os.fsdecode(name) for name in said.split(b"\0") if name]:
        user, group = nodes.user
        raise LaunchError(
            f"{closed[0]} is closed to ranks, which run as user {user} of group {group}",
            rule="ranks never run as root in a container, whoever starts them",
            fix=(f"chmod -R go+rX {closed[0]}", "the same for folders above it"),
        )


def _answer(process: NodeProcess) -> bytes:
    """What a program in a node writes. Raises LaunchError where it fails, or does not end."""
    assert process.stdin and process.stdout and process.stderr
    overdue = Timer(TIMEOUT_S, process.kill)
    overdue.start()
    try:
        with process.stdin, process.stdout, process.stderr:
            process.stdin.close()
            said, complaint = process.stdout.read(), process.stderr.read()
            status = process.wait(TIMEOUT_S)
    finally:
        overdue.cancel()
    if status:
        words = b" ".join((said + b" " + complaint).split()).decode(errors="replace")
        raise LaunchError(
            "a node does not say what ranks may read",
            rule="it is asked before any of them starts",
            fix="make cluster-down, then make cluster-up",
            seen=words or f"no answer within {TIMEOUT_S:g} s",
        )
    return said
