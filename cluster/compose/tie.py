"""Brings a project up, and takes it away again if whoever asked for it ends before it is kept.

`python -m cluster.compose.tie PROJECT HOME COMMAND...` runs the command, writes its exit status as
a line, and waits: for `keep`, or for the end of its standard input. On that, at any moment, also
while the command runs, all that carries the labels of the project and of its home is removed.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

from cluster.compose.engine import Engine
from cluster.descendants import end_with_parent
from cluster.errors import ClusterError

KEEP = b"keep\n"
SETTLE_S, KILLED_SETTLE_S, LOOK_S = 0.5, 3.0, 0.25
"""A command that ended, or was killed, may have asked the engine for something that is still to
appear: so long after the end it is looked for, and removed."""


def main() -> int:
    project, home, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of our input is the order to end
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        start_new_session=True,
        restore_signals=True,
        preexec_fn=partial(end_with_parent, os.getpid()),
    )
    settle_s = SETTLE_S
    if _ends(process):
        with suppress(OSError):
            os.write(1, f"{process.wait()}\n".encode())
            if os.read(0, len(KEEP)) == KEEP:
                return 0
    else:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        settle_s = KILLED_SETTLE_S
    deadline_s = time.monotonic() + settle_s
    try:
        engine = Engine.connect()
        engine.remove(project, home)
        while time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
            engine.remove(project, home)
    except ClusterError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


def _ends(process: "subprocess.Popen[bytes]") -> bool:
    """Whether the command ends before our input does."""
    handle = os.pidfd_open(process.pid)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(0, 0)  # a hang-up is always reported
    ended = handle in dict(poller.poll())
    os.close(handle)
    return ended


if __name__ == "__main__":
    sys.exit(main())
