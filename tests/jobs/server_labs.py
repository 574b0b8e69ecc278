"""Labs that are stood in for by a sleeping process each, and the exporters that run beside them."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from cluster.holding import Holder, boot_id, start_ticks
from cluster.spec import load_cluster
from cluster.state import LabDirectory
from jobs.server.process import end_unwanted


class Labs:
    """Labs that are up as long as a process of ours sleeps."""

    def __init__(self) -> None:
        self.holders: dict[str, subprocess.Popen[bytes]] = {}

    def up(self, name: str) -> None:
        sleeping = subprocess.Popen(["sleep", "300"], start_new_session=True)
        self.holders[name] = sleeping
        ticks = start_ticks(sleeping.pid) or 0
        holder = Holder(sleeping.pid, ticks, os.getpid(), 0, boot_id(), False).to_json()
        nodes = {"holder": holder, "nodes": [], "subnet": "198.18.0.0/24", "privilege": "none"}
        directory = LabDirectory.of(name)
        directory.path.mkdir(mode=0o700, exist_ok=True)
        spec = load_cluster("2x2", None).to_dict()
        kept = {"backend": "netns", "spec": spec, "created_at": 0.0, "nodes": nodes}
        directory.write({**kept, "probe": None})

    def kill(self, name: str) -> None:
        """As when its holder is killed: what it left stays."""
        self.holders[name].kill()
        self.holders[name].wait()

    def down(self, name: str) -> None:
        """As the verb does it."""
        self.kill(name)
        with LabDirectory.of(name).locked():
            LabDirectory.of(name).remove()
        end_unwanted()


def exporters(state: Path) -> list[int]:
    """Processes that run an exporter of this state folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "jobs.server" in words and any(word.startswith(str(state)) for word in words):
            found.append(int(entry.name))
    return [pid for pid in found if start_ticks(pid) is not None]


def eventually(true: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return true()
