"""Whether a port of this machine is free, and what holds it. Standard library only."""

import errno
import pwd
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cluster.doctor.checks import OK, WARNING, Check
from cluster.packages import as_root

TIMEOUT_S = 2.0
_LISTENING = "0A"


class Holder(NamedTuple):
    """Who listens: the owner, and the process where this user may know it."""

    owner: str
    pid: int | None
    command: str

    @property
    def words(self) -> str:
        if self.pid is None:
            return f"a program of {self.owner}"
        return f"{self.command} (process {self.pid} of {self.owner})"


def port_check(address: str, ports: Sequence[int], what: str, own: str) -> Check:
    """Whether `what` gets the first of `ports`; `own` is how its own command line is known."""
    first = f"{address}:{ports[0]}"
    try:
        free = next((port for port in ports if is_free(address, port)), None)
    except OSError as exc:
        seen = f"{first} cannot be used: {exc.strerror or exc}"
        return Check("ports", WARNING, seen, (as_root("ip link set lo up"),))
    if free == ports[0]:
        return Check("ports", OK, f"{first} is free for {what}")
    holder = holder_of(address, ports[0])
    if holder and own in holder.command:
        return Check("ports", OK, f"{first} is {what} that runs now (process {holder.pid})")
    by = holder.words if holder else "a program that has just ended"
    who = as_root("ss --listening --tcp --processes") + "     says which program it is"
    fixes = (f"kill {holder.pid}     ends it",) if holder and holder.pid else (who,)
    if free is None:
        seen = f"{first} is taken by {by}, and so are all others to {ports[-1]}: {what} finds none"
        return Check("ports", WARNING, seen, fixes)
    seen = f"{first} is taken by {by}; {what} takes {free}, which whoever reads it must know"
    return Check("ports", WARNING, seen, fixes)


def is_free(address: str, port: int) -> bool:
    """Whether one can listen there, and be reached. Raises OSError where that is not the port's
    matter."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen()
        except OSError as exc:
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        socket.create_connection((address, port), TIMEOUT_S).close()
    return True


def holder_of(address: str, port: int) -> Holder | None:
    """Who listens on a port, at this address or at all of them."""
    for line in _sockets():
        place, state, uid, inode = line[1], line[3], int(line[7]), line[9]
        there, _, number = place.partition(":")
        if state != _LISTENING or int(number, 16) != port or not _covers(there, address):
            continue
        pid = _process_with(f"socket:[{inode}]")
        return Holder(_user(uid), pid, _command(pid) if pid else "")
    return None


def _sockets() -> Iterator[list[str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                yield line.split()


def _covers(there: str, address: str) -> bool:
    """Whether what listens at `there`, in hexadecimal, keeps `address` from others."""
    exact = socket.inet_aton(address)[::-1].hex().upper()
    return not there.strip("0") or there.endswith(exact)


def _process_with(link: str) -> int | None:
    for entry in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            if any(_leads_to(file, link) for file in entry.iterdir()):
                return int(entry.parent.name)
    return None


def _leads_to(file: Path, link: str) -> bool:
    try:
        return str(file.readlink()) == link
    except OSError:
        return False


def _command(pid: int) -> str:
    """Its command line as far as people know a program by it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "a program"
    return " ".join([Path(words[0]).name, *words[1:4]]).strip()[:60]


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
