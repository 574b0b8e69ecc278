"""Whose the files are: of the checkout, of its runs, and of the state that labs keep.

Standard library only.
"""

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from cluster.doctor.checks import FAULT, OK, WARNING, Check
from cluster.errors import StateRefused
from cluster.packages import as_root
from cluster.state import state_root

MOST_SHOWN = 3
HIDDEN_IN_A_LAB = ("/run", "/dev/shm")
RANKS_OF_ROOT = 65534
"""As whom ranks run in the containers of labs that root makes: the folders of runs are theirs."""
_WHOLE = (".git", ".venvs")
"""Folders whose contents have one owner: looked at, not into."""


def files_check(checkout: Path, runs: Path) -> Check:
    """Whether all of it is ours; what we must write to and cannot is a fault."""
    checkout, runs = checkout.resolve(), runs.resolve()
    for path in (checkout, runs):
        if any(path.is_relative_to(hidden) for hidden in HIDDEN_IN_A_LAB):
            move = ("move it to another place, such as your home directory",)
            return Check("files", FAULT, f"{path} cannot be seen inside a lab", move)
    if os.geteuid() == 0 and (owner := checkout.lstat().st_uid) != 0:
        seen = f"this checkout is {_name(owner)}'s, and what root makes here {_name(owner)} cannot"
        return Check("files", WARNING, f"{seen} change", (f"run make as {_name(owner)}",))
    foreign = list(_foreign([checkout] if runs.is_relative_to(checkout) else [checkout, runs]))
    foreign = [path for path in foreign if not _is_of_ranks(path, runs)]
    closed = [path for path in _written_to(checkout, runs) if not os.access(path, os.W_OK)]
    if closed:
        return _closed(closed, checkout)
    if foreign:
        state = FAULT if any(path.parent == runs for path in foreign) else WARNING
        return Check("files", state, *_told("not yours", foreign, checkout))
    return Check("files", OK, f"all of {checkout} is yours")


def state_check(environ: Mapping[str, str]) -> Check:
    """Whether the folder in which labs keep their state can be trusted, and all of it is ours."""
    try:
        root = state_root(environ, os.geteuid())
    except StateRefused as exc:
        seen = ": ".join(part for part in (exc.message, exc.seen) if part)
        return Check("state", FAULT, seen, exc.fix or ("choose another: XDG_RUNTIME_DIR=...",))
    foreign = [path for path in root.iterdir() if path.lstat().st_uid != os.geteuid()]
    if foreign:
        return Check("state", FAULT, *_told("not yours", foreign, root))
    return Check("state", OK, f"{root} is yours alone")


def _is_of_ranks(path: Path, runs: Path) -> bool:
    """Whether root's own ranks wrote this, which root can change and remove."""
    by_ranks = path.lstat().st_uid == RANKS_OF_ROOT
    return os.geteuid() == 0 and by_ranks and path.is_relative_to(runs)


def _closed(paths: Sequence[Path], checkout: Path) -> Check:
    """What we must write to, and may not."""
    if any(os.statvfs(path).f_flag & os.ST_RDONLY for path in paths):
        seen = f"{paths[0]} is on a file system that is mounted read-only"
        return Check("files", FAULT, seen, ("clone it into a folder that can be written to",))
    if own := [path for path in paths if path.stat().st_uid == os.geteuid()]:
        names = " ".join(quote(str(path)) for path in own)
        seen = f"{names}: yours, and closed to writing"
        return Check("files", FAULT, seen, (f"chmod u+rwx {names}",))
    return Check("files", FAULT, *_told("closed to you", paths, checkout))


def _written_to(checkout: Path, runs: Path) -> Iterator[Path]:
    """Folders in which things are made or replaced."""
    for folder in (checkout, checkout / ".venvs", runs):
        if folder.is_dir():
            yield folder


def _foreign(tops: Sequence[Path]) -> Iterator[Path]:
    """What belongs to somebody else; of a folder that does, not what is in it."""
    for top in tops:
        if top.exists() and top.lstat().st_uid != os.geteuid():
            yield top
        else:
            yield from _foreign_in(top)


def _foreign_in(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False) and folder.name not in _WHOLE:
                yield from _foreign_in(Path(entry.path))


def _told(what: str, paths: Sequence[Path], top: Path) -> tuple[str, tuple[str, ...]]:
    """What was seen, and the fix."""
    shown = [_shown(path, top) for path in paths[:MOST_SHOWN]]
    more = f" and {len(paths) - MOST_SHOWN} more" if len(paths) > MOST_SHOWN else ""
    seen = f"{what}: {', '.join(shown)}{more}"
    places = paths if len(paths) <= MOST_SHOWN else [top]
    names = " ".join(quote(str(path)) for path in places)
    take = as_root(f"chown -R {_ourselves()} {names}")
    if top in paths:
        return seen, ("clone it into a folder of your own", f"{take}     if it is yours")
    return seen, (take,)


def _shown(path: Path, top: Path) -> str:
    place = str(path.relative_to(top)) if path != top and path.is_relative_to(top) else str(path)
    return f"{place} ({_name(path.lstat().st_uid)}'s)"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _ourselves() -> str:
    """As chown takes it: `mei:`, which includes her group, or two numbers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name + ":"
    except KeyError:
        return f"{os.geteuid()}:{os.getegid()}"
