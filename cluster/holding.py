"""Starts, finds, enters and ends the holder: the process that a lab of namespaces lives in.

A holder is known by process id and start time, so that a process id used again is never trusted.
"""

import getpass
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster import holder
from cluster.errors import HostError, MissingTool
from cluster.packages import install_commands
from cluster.refusals import SETTINGS, explain_refusal, setting_path

START_TIMEOUT_S = 10.0
SUDO_TIMEOUT_S = 120.0
END_TIMEOUT_S = 5.0
CLIENTS_S = 0.5  # how long those who entered have for leaving by themselves
_PF_EXITING = 0x4
SIGNALLED = 128
"""Above it, an exit status tells the signal that ended a process further down."""


def tool(name: str) -> str:
    """Full path of a command; also where only root's PATH looks. Raises MissingTool."""
    path = shutil.which(name, path=search_path())
    if path is None:
        raise MissingTool(
            f"the command {name!r} is not installed",
            "labs of network namespaces are made with iproute2 and util-linux",
            install_commands([name]),
        )
    return path


def search_path() -> str:
    """PATH, and where Debian keeps commands that ordinary users do not have in theirs."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None where none runs under this id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _is_ending(pid: int) -> bool:
    """Whether a process was killed already, and only waits for what lived below it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ProcessLookupError):
        return True
    return bool(int(fields[6]) & _PF_EXITING)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class Holder:
    """Process 1 of a lab (`pid`) and the unshare above it, as this machine numbers them."""

    pid: int
    pid_ticks: int
    parent: int
    parent_ticks: int
    boot: str
    user_namespace: bool
    """Whether the lab has a user namespace of its own, in which its user is root."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Holder":
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def alive(self) -> bool:
        if self.boot != boot_id() or start_ticks(self.pid) != self.pid_ticks:
            return False
        return not _is_ending(self.pid)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in the lab, as its root."""
        user = ["-U", "--preserve-credentials"] if self.user_namespace else []
        spaces = ["-m", "-p", "-u", "-i", "-n"]
        return [tool("nsenter"), "-t", str(self.pid), *user, *spaces, *argv]

    def end(self) -> None:
        """Kills the holder; the kernel ends everything in it. Raises HostError if it stays."""
        if self.boot != boot_id():
            return
        for pid, ticks in ((self.pid, self.pid_ticks), (self.parent, self.parent_ticks)):
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                try:
                    if start_ticks(pid) != ticks:
                        continue
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    if not _ended(handle, CLIENTS_S):
                        self._kill_clients()
                        self._wait(handle, pid)
                finally:
                    os.close(handle)

    def _kill_clients(self) -> None:
        """Who entered the lab and does not collect its dead child, because it was stopped, say:
        the kernel keeps the holder until that is done."""
        entered = [b"-t", str(self.pid).encode()]
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"nsenter") and words[1:3] == entered:
                    os.kill(int(entry.name), signal.SIGKILL)

    def _wait(self, handle: int, pid: int) -> None:
        if not _ended(handle, END_TIMEOUT_S):
            raise HostError(
                f"process {pid}, in which the lab lives, was killed and is still there",
                f"waited {END_TIMEOUT_S:g} s for it to end",
                f"look at what it waits for: cat /proc/{pid}/wchan",
            )


def _ended(handle: int, timeout_s: float) -> bool:
    """Whether the process of this pidfd ends in time."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def start_holder(directory: Path, privilege: str) -> tuple[Holder, socket.socket]:
    """A new holder, and the socket that ties it to this process until `keep` is sent on it."""
    (directory / holder.LOG_FILE).unlink(missing_ok=True)
    with _listening(directory) as listener:
        _run_starter(directory, privilege)
        try:
            tie, _ = listener.accept()
        except TimeoutError as exc:
            raise _ended_early(directory) from exc
    try:
        credentials = tie.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        parent = parent_of(pid)
        started, parent_started = start_ticks(pid), start_ticks(parent)
        if started is None or parent_started is None:
            raise _ended_early(directory)
        own = os.geteuid() != 0
        return Holder(pid, started, parent, parent_started, boot_id(), own), tie
    except BaseException:
        tie.close()
        raise


@contextmanager
def _listening(directory: Path) -> Iterator[socket.socket]:
    """The socket that the holder reports to; addressed so that its path may be of any length."""
    (directory / holder.READY_SOCKET).unlink(missing_ok=True)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"/proc/self/fd/{place}/{holder.READY_SOCKET}")
            listener.listen(1)
            listener.settimeout(START_TIMEOUT_S)
            yield listener
    finally:
        os.close(place)
        (directory / holder.READY_SOCKET).unlink(missing_ok=True)


def _run_starter(directory: Path, privilege: str) -> None:
    script = [sys.executable, "-I", "-S", holder.__file__]
    command = [
        *script,
        "start",
        str(directory),
        *unshare_command(),
        *script,
        "hold",
        str(directory),
    ]
    elevated = privilege == "sudo" and os.geteuid() != 0
    if elevated:
        command = [*elevation(), *command]
    timeout_s = SUDO_TIMEOUT_S if elevated else START_TIMEOUT_S
    try:
        result = subprocess.run(
            command,
            stdin=None if elevated else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if elevated else subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "PATH": search_path()},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise HostError(f"the lab's process did not start within {timeout_s:g} s") from exc
    seen = _log_tail(directory)
    if result.returncode and elevated and not seen:
        raise HostError(
            "sudo did not start the lab",
            "with PRIVILEGE=sudo only the lab's own process is started with more rights",
            "try it in a terminal: sudo true",
            seen=f"sudo ended with {result.returncode}",
        )
    killed_by = -result.returncode if result.returncode < 0 else result.returncode - SIGNALLED
    if killed_by in set(signal.Signals) and not seen:
        raise HostError(
            f"the lab's process was killed by {signal.Signals(killed_by).name} as it began",
            "a lab ends with the process it lives in",
            "make cluster-up",
        )
    if "sigprocmask" in seen:  # what unshare says when its child was killed
        raise _ended_early(directory)
    if result.returncode:
        raise refusal(seen or f"the holder ended with {result.returncode}")


def unshare_command() -> list[str]:
    """What starts a program in the namespaces of a lab; of its own user too, unless for root."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # what is mounted here later is seen in the lab, and what is unmounted is not kept busy by it
    return [tool("unshare"), *user, *spaces, "--uts", "--ipc", "--propagation", "slave"]


def elevation() -> list[str]:
    """sudo, only so that unshare is trusted; the namespaces still belong to this user."""
    identity = ["--reuid", str(os.geteuid()), "--regid", str(os.getegid()), "--init-groups"]
    rights = ["--inh-caps", "+sys_admin", "--ambient-caps", "+sys_admin"]
    return [tool("sudo"), tool("setpriv"), *identity, *rights]


def _ended_early(directory: Path) -> HostError:
    rule = "a lab ends with the process it lives in"
    seen = _log_tail(directory) or None
    return HostError("the lab's process ended as it began", rule, "make cluster-up", seen=seen)


def _log_tail(directory: Path) -> str:
    try:
        lines = (directory / holder.LOG_FILE).read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""


def refusal(seen: str) -> HostError:
    """The error for a holder that did not start, from this machine's settings."""
    settings = {}
    for name in SETTINGS:
        with suppress(OSError):
            settings[name] = Path(setting_path(name)).read_text().strip()
    lacking = "" if shutil.which("docker") else " (not found on this machine)"
    others = [f"make cluster-up BACKEND=compose      with Docker{lacking}"]
    return explain_refusal(seen, user_name(), os.geteuid() == 0, settings, others)


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())
