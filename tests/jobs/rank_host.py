"""Runs ranks of a job as processes of this machine, over loopback, forked from one that has torch.

A test sends a line of JSON, a list with the argument of each rank, and reads a line back: for each
rank its exit status, what it told its launcher, and its log. Ranks end when the host does. An
argument may carry test_file_limit_bytes: that rank's disk is full after so much. One that holds a
rank's argument under "rank" is of several jobs that take turns, or of a bench.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 40
PR_SET_PDEATHSIG = 1


def main() -> None:
    gc.disable()  # as an agent imports
    from jobs.bench.rank import main as bench_main
    from jobs.rankplan import TORCHS_COMPILER
    from jobs.rounds.rank import main as turns_main
    from jobs.worker import main as rank_main

    gc.freeze()
    gc.enable()

    def rank(argument: dict[str, Any], folder: Path) -> int:
        log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        events = os.open(folder / "events", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["DDPLAB_EVENTS_FD"] = str(events)
        os.environ["DDPLAB_NODE"] = str(who(argument).get("node_name"))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if limit_bytes := argument.pop("test_file_limit_bytes", None):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        try:
            alone = who(argument) is argument
            program = rank_main if alone else bench_main if "bench" in argument else turns_main
            program(argument)
        except SystemExit as exc:
            return int(exc.code or 0)
        except BaseException:
            traceback.print_exc()
            return 99
        return 0

    for line in sys.stdin:
        if '"wrapper": "torch"' in line:
            importlib.import_module(TORCHS_COMPILER)  # once, not in each rank
        with tempfile.TemporaryDirectory() as folder, socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            answer = run(rank, json.loads(line), listener, Path(folder))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def run(
    rank: Any, arguments: Sequence[dict[str, Any]], listener: socket.socket, folder: Path
) -> list[dict[str, Any]]:
    pids, folders = [], []
    for index, argument in enumerate(arguments):
        told = who(argument)
        told["master_port"] = listener.getsockname()[1]
        told["listen_fd"] = listener.fileno() if told.get("rank") == 0 else None
        folders.append(folder / str(index))
        folders[-1].mkdir()
        pids.append(os.fork())
        if pids[-1] == 0:
            os._exit(rank(argument, folders[-1]))
    return [
        {
            "status": wait(pid),
            "events": [json.loads(line) for line in read(path / "events").splitlines()],
            "log": read(path / "log"),
        }
        for pid, path in zip(pids, folders, strict=True)
    ]


def who(argument: dict[str, Any]) -> dict[str, Any]:
    """The part of it that says which rank this is."""
    inner = argument.get("rank")
    return inner if isinstance(inner, dict) else argument


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait(pid: int) -> int | str:
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], TIMEOUT_S)[0]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "timed out"
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main()
