"""The run folder of ranks that somebody else started: one that all see, or one on each machine.

Owns who makes it, how ranks learn whether they share it, and the part files of those who do not.
"""

import json
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store

from jobs.errors import RecordsError, WorkerError
from jobs.runfolder import ASIDE, RunFolder
from jobs.torchrun.facts import Layout

SHARED, OWN = "shared", "own"
MARK = ".session"
LOOK_S = 0.05
RULE = "each run has a folder of its own, which it makes"


@dataclass(frozen=True)
class Session:
    """What rank 0 says of the run that begins: the same on all ranks."""

    run_id: str
    token: str
    """Known to the ranks of this run alone, so that no other run's files are taken for its own."""
    created_at: str

    def to_json(self) -> dict[str, str]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class RankFolder:
    """Where one rank writes, and whether all write there."""

    folder: RunFolder
    session: Session
    shared: bool


def agree_on_folder(
    store: Store, out: Path, rank: int, layout: Layout, timeout_s: float
) -> RankFolder:
    """Every rank must call it. Raises RecordsError, the same on all ranks, where a folder cannot be
    made, and WorkerError where a rank does not answer.
    """
    out, node = out.absolute(), layout.node_of[rank]
    if rank == 0:
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        session = Session(out.name, secrets.token_hex(8), now)
        said = _made(out, session) or SHARED
        store.set("session", json.dumps(session.to_json()))
        store.set(_key(layout, 0), said)
    else:
        session = Session(**json.loads(_wait(store, ["session"], timeout_s)[0]))
        if rank == layout.ranks_on(node)[0]:
            (said,) = _wait(store, [_key(layout, 0)], timeout_s)
            if said == SHARED and _token_of(out) != session.token:
                said = _made(out, session) or OWN
            store.set(_key(layout, rank), said)
    keys = [_key(layout, layout.ranks_on(each)[0]) for each in sorted(set(layout.node_of))]
    said_by_node = _wait(store, keys, timeout_s)
    for words in said_by_node:
        if words not in (SHARED, OWN):
            if _token_of(out) == session.token:  # made just now; nothing else is in it
                shutil.rmtree(out, ignore_errors=True)
            raise RecordsError(words, rule=RULE, fix="give --out a name that is free everywhere")
    shared = all(words == SHARED for words in said_by_node)
    return RankFolder(RunFolder(out), session, shared)


def _key(layout: Layout, rank: int) -> str:
    return f"folder/{layout.node_of[rank]}"


def _made(out: Path, session: Session) -> str | None:
    """None where the folder is now there, and this run's; else why not.

    Nodes that share it with one another, but not with rank 0, may make it at the same moment.
    """
    aside = out.parent / f"{ASIDE}{secrets.token_hex(6)}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        try:
            (aside / MARK).write_text(session.token)
            aside.rename(out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as exc:
        if _token_of(out) == session.token:
            return None
        return f"{out}: there already" if out.exists() else f"{out}: {exc.strerror}"
    return None


def _token_of(folder: Path) -> str | None:
    try:
        return (folder / MARK).read_text()
    except OSError:
        return None


def forget_mark(folder: RunFolder) -> None:
    """When all have found it."""
    with suppress(OSError):
        (folder.path / MARK).unlink(missing_ok=True)


def _wait(store: Store, keys: Sequence[str], timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    while not store.check(list(keys)):
        if time.monotonic() > deadline:
            missing = [key for key in keys if not store.check([key])]
            raise WorkerError(
                f"no word of {', '.join(missing)} within {timeout_s:g} s",
                rule="every node says where it keeps the run's files before the run begins",
                fix="look at what was said on that node",
            )
        time.sleep(LOOK_S)
    return [store.get(key).decode() for key in keys]


def wait_until_closed(store: Store, world_size: int, timeout_s: float) -> None:
    """Returns when every rank has closed its file; `closed` says so of one."""
    _wait(store, [f"closed/{rank}" for rank in range(world_size)], timeout_s)


def closed(store: Store, rank: int) -> None:
    store.set(f"closed/{rank}", "")


def part_name(node: int) -> str:
    return f"part{node}.json"


def write_part(it: RankFolder, node: int, ranks: Sequence[int], run: Mapping[str, Any]) -> None:
    """What `ddplab collect` must know of the files of one node."""
    document = {
        "schema": 1,
        "session": it.session.to_json(),
        "node": node,
        "ranks": list(ranks),
        "run": run,
    }
    it.folder.write(part_name(node), document)
