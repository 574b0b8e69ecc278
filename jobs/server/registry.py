"""Where an exporter and the commands that start and end it meet: a folder per folder of runs.

    <state of labs>/.exporters/<key>/   locked (flock) by the exporter as long as it lives
        labs/<lab>                      a lab that was brought up there
        labs/<lab>.<process>            a lab that is just being brought up by that process
        gateways/<lab>                  where the lab's own Prometheus asks, such as 198.19.255.1/24
        process.json  address  log      the exporter's process, its address, what it said

Changes are made under a lock on the folder of all labs' state. Starts and ends no process.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from cluster.errors import ClusterError
from cluster.holding import boot_id, start_ticks
from cluster.kept import read_lab
from cluster.state import LabDirectory, state_root
from jobs.errors import JobError, LaunchError

FOLDER = ".exporters"
LOCK_TIMEOUT_S = 10.0
FAULTS = (JobError, ClusterError, OSError)
"""All that can go wrong here: a lab is worth having without an exporter."""


@dataclass(frozen=True)
class Process:
    """A process that is known again even when its number was given to another one."""

    pid: int
    ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Process":
        return cls(pid, start_ticks(pid) or 0, boot_id())

    @property
    def alive(self) -> bool:
        return self.boot == boot_id() and start_ticks(self.pid) == self.ticks


def exporters_folder() -> Path:
    """Where all exporters of this user have their folders."""
    return state_root(os.environ, os.geteuid()) / FOLDER


@contextmanager
def changing() -> Iterator[Path]:
    """The folder of all exporters, which nobody else changes meanwhile. Raises LaunchError."""
    root = exporters_folder().parent
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while not _try_lock(lock):
            if time.monotonic() > deadline_s:
                raise LaunchError(
                    f"{root} was locked for {LOCK_TIMEOUT_S:g} s",
                    rule="one command at a time starts or ends an exporter",
                    fix="end the command that is stopped in the middle: jobs -l",
                )
            time.sleep(0.02)
        yield root / FOLDER
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True)
class Place:
    """The folder of one exporter."""

    path: Path

    @classmethod
    def of(cls, exporters: Path, runs: Path) -> "Place":
        """Of the exporter of this folder of runs."""
        return cls(exporters / hashlib.sha256(os.fsencode(runs)).hexdigest()[:16])

    @classmethod
    def all(cls, exporters: Path) -> list["Place"]:
        return [cls(path) for path in sorted(exporters.glob("*")) if path.is_dir()]

    @contextmanager
    def claimed(self) -> Iterator[int | None]:
        """The folder, locked for the exporter that is started with it; None where one lives."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield folder if _try_lock(folder) else None
        finally:
            os.close(folder)

    def is_served(self) -> bool:
        """Whether an exporter lives here, as far as one can tell without touching its lock."""
        return self.process is not None and self.process.alive

    def is_locked(self) -> bool:
        """Whether an exporter lives. Only for those who change things: it tries the lock."""
        try:
            with self.claimed() as folder:
                return folder is None
        except FileNotFoundError:
            return False

    def is_same_folder(self, folder: int) -> bool:
        """Whether `folder` is still the one at this path."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(folder))
        except OSError:
            return False

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def address(self) -> str | None:
        """Such as http://127.0.0.1:9440/; None while it is not known."""
        try:
            return (self.path / "address").read_text() or None
        except OSError:
            return None

    def publish(self, address: str) -> None:
        """Tells those who wait for it where the exporter answers."""
        aside = self.path / "address.new"
        aside.write_text(address)
        aside.replace(self.path / "address")

    def forget_address(self) -> None:
        (self.path / "address").unlink(missing_ok=True)

    @property
    def process(self) -> Process | None:
        try:
            return Process(**json.loads((self.path / "process.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def note_process(self, pid: int) -> None:
        (self.path / "process.json").write_text(json.dumps(asdict(Process.of(pid))))

    def register(self, lab: str) -> None:
        """This process is bringing the lab up."""
        (self.path / "labs").mkdir(parents=True, mode=0o700, exist_ok=True)
        self._coming(lab).write_text(json.dumps(asdict(Process.of(os.getpid()))))

    def keep(self, lab: str) -> None:
        """The lab is up: from now on it counts as long as it is."""
        self._coming(lab).replace(self.path / "labs" / lab)

    def withdraw(self, lab: str) -> None:
        """The lab did not come up."""
        self._coming(lab).unlink(missing_ok=True)

    def has(self, lab: str) -> bool:
        """Whether the lab came up here."""
        return (self.path / "labs" / lab).exists()

    def labs(self) -> set[str]:
        """Labs that are up, or just coming up; what is no longer is forgotten.

        A lab that came up is kept, though its maker was killed before it could.
        """
        alive = set()
        for file in (self.path / "labs").glob("*"):
            lab, _, maker = file.name.partition(".")
            if maker and _made_by_living(file):
                alive.add(lab)
            elif _is_up(lab):
                alive.add(lab)
                file.replace(self.path / "labs" / lab)
            else:
                file.unlink(missing_ok=True)
        for file in (self.path / "gateways").glob("*"):
            if file.name not in alive:
                file.unlink(missing_ok=True)
        return alive

    def note_gateway(self, lab: str, gateway: IPv4Interface | None) -> None:
        """Where the lab's own Prometheus asks for metrics; None: it has none."""
        file = self.path / "gateways" / lab
        if gateway is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(mode=0o700, exist_ok=True)
        aside = self.path / "gateway.new"
        aside.write_text(str(gateway))
        aside.replace(file)

    def gateways(self) -> dict[str, IPv4Interface]:
        """By lab, of those that have a Prometheus of their own."""
        found = {}
        for file in (self.path / "gateways").glob("*"):
            with suppress(OSError, ValueError):  # it is just going, or somebody else's
                found[file.name] = IPv4Interface(file.read_text())
        return found

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # another exporter's folder is beside it
            self.path.parent.rmdir()

    def _coming(self, lab: str) -> Path:
        return self.path / "labs" / f"{lab}.{os.getpid()}"


def _made_by_living(file: Path) -> bool:
    with suppress(OSError, ValueError, TypeError):
        return Process(**json.loads(file.read_text())).alive
    return False


def _is_up(lab: str) -> bool:
    """Only looks: what a dead lab left stays for those who ask for that lab."""
    try:
        read_lab(LabDirectory.of(lab))
    except ClusterError:
        return False
    return True
