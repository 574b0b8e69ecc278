"""The process on a node of a lab that Ray lives below: started, kept, ended as one.

`python -m cluster.rayhosts.supervisor start FOLDER WORD...` runs `ray start WORD...` with a
temporary folder of its own, prints `{"pid", "ticks"}`, and stays in the background once it reads
`keep`; where its input ends before, nothing is left. It ends, and ends all of Ray on its node,
when the raylet or the head's store has ended. `stop PID TICKS` ends it; `alive PID TICKS` tells.
Standard library only.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster.descendants import adopt_orphans, descendants, kill_descendants
from cluster.holding import start_ticks

KEEP = b"keep\n"
VITAL = ("raylet", "gcs_server")
"""Without them a node is none."""
STOP_S = 15.0
RAY = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"


def start(folder: str, words: Sequence[str]) -> int:
    """The client's side: waits for Ray, tells, and passes on whether it is kept."""
    told, tell = os.pipe()
    kept, keep = os.pipe()
    if os.fork() == 0:
        os.close(told)
        os.close(keep)
        _supervise(folder, words, tell, kept)
    os.close(tell)
    os.close(kept)
    poller = select.poll()
    poller.register(0, 0)  # a client that is gone wants nothing
    poller.register(told, select.POLLIN)
    answer = b""
    while 0 not in dict(poller.poll()):
        if not (more := os.read(told, 1 << 16)):
            break
        answer += more
    sys.stdout.write(answer.decode())
    sys.stdout.flush()
    if os.read(0, len(KEEP)) != KEEP:
        return 1
    os.write(keep, KEEP)
    return 0


class Supervisor:
    """Ray of one node, in a temporary folder of its own."""

    def __init__(self, folder: str) -> None:
        self._home = tempfile.mkdtemp(prefix=f"{folder}-")
        self._vital: set[str] = set()

    def run(self, words: Sequence[str], tell: int, kept: int) -> None:
        """Never returns."""
        try:
            os.write(tell, json.dumps(self._started(words)).encode() + b"\n")
            os.close(tell)
            if os.read(kept, len(KEEP)) == KEEP:
                while self._whole():
                    os.waitpid(-1, 0)
        finally:
            self.end()

    def end(self) -> None:
        kill_descendants(os.getpid())
        shutil.rmtree(self._home, ignore_errors=True)
        os._exit(0)

    def _started(self, words: Sequence[str]) -> dict[str, Any]:
        command = [sys.executable, "-c", RAY, "start", *words, f"--temp-dir={self._home}"]
        env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=env, check=False
        )
        if done.returncode or not self._whole():
            said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
            return {"failed": said[-5:], "status": done.returncode}
        return {"pid": os.getpid(), "ticks": start_ticks(os.getpid())}

    def _whole(self) -> bool:
        """Whether all that this node began with is there; what has ended is reaped."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        names = set()
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                names.add(Path(f"/proc/{pid}/comm").read_text().strip())
        self._vital |= names & set(VITAL)
        return "raylet" in self._vital and names >= self._vital


def _supervise(folder: str, words: Sequence[str], tell: int, kept: int) -> None:
    """A process of its own session; never returns."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    adopt_orphans()
    supervisor = Supervisor(folder)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: supervisor.end())
    supervisor.run(words, tell, kept)


def stop(pid: int, ticks: int) -> int:
    """Ends a supervisor, and waits until it and all below it have ended."""
    if start_ticks(pid) == ticks:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while start_ticks(pid) == ticks:
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.02)
    return 0


def main(words: Sequence[str]) -> int:
    if words[0] == "start":
        return start(words[1], words[2:])
    pid, ticks = int(words[1]), int(words[2])
    if words[0] == "alive":
        return int(start_ticks(pid) != ticks)
    return stop(pid, ticks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
