"""The process that a lab of namespaces lives in: its process 1. Standard library only.

Run by file name with `python -I -S`, twice. `start DIRECTORY COMMAND...` detaches COMMAND (the
unshare that runs the second) and waits until it is ready, or ends with its error. `hold
DIRECTORY FD` is process 1 of the new namespaces: it makes /run and /dev/shm private, reports to
the socket in DIRECTORY, and then waits. It ends when its maker goes away before saying `keep`,
when the lab's state file is gone, and when it is told to (SIGTERM, as at a shutdown); with it the
kernel ends all that lives in the lab.
"""

import os
import signal
import socket
import sys
import time

READY_SOCKET = "ready"
LOG_FILE = "holder.log"
STATE_FILE = "state.json"
KEEP = b"keep"
TEMPORARY = "/run/tmp"
WATCH_INTERVAL_S = 2.0


def start(directory: str, command: list[str]) -> int:
    """Runs `command` in a session of its own until it is ready; its exit status if it ends."""
    ready_fd, written_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(ready_fd)
        os.set_inheritable(written_fd, True)
        os.chdir(directory)
        log = os.open(LOG_FILE, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.execv(command[0], [*command, str(written_fd)])
    os.close(written_fd)
    if os.read(ready_fd, 1):
        return 0
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code or 1


def hold(directory: str, ready_fd: int) -> None:
    """Process 1 of the lab."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):  # process 1 would not hear them
        signal.signal(number, lambda *_: os._exit(0))
    state = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(directory)
    maker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    maker.connect(READY_SOCKET)
    os.chdir("/")
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    _run("mkdir", "-m", "1777", TEMPORARY)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(ready_fd, b"1")
    os.close(ready_fd)
    if maker.recv(len(KEEP)) != KEEP:
        return
    maker.close()
    while _exists(STATE_FILE, state):
        time.sleep(WATCH_INTERVAL_S)


def _run(*command: str) -> None:
    status = os.spawnvp(os.P_WAIT, command[0], command)
    if status:
        sys.exit(f"{' '.join(command)}: ended with {status}")


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1] == "start":
        sys.exit(start(sys.argv[2], sys.argv[3:]))
    hold(sys.argv[2], int(sys.argv[3]))
