"""What ranks run in the tests of the agent. Standard library only."""
# ruff: noqa: T201, ARG001

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(data: object) -> None:
    os.write(int(os.environ["DDPLAB_EVENTS_FD"]), json.dumps(data).encode() + b"\n")


def report(argument: dict[str, Any]) -> None:
    """Prints and sends what the rank sees of itself."""
    print("to stdout", argument["word"])
    print("to stderr", os.environ["MARK"], file=sys.stderr)
    say({"word": argument["word"], "group": os.getpgid(0) == os.getpid()})


def end(argument: dict[str, Any]) -> None:
    """Ends as it is told."""
    how = argument["how"]
    if how == "raise":
        raise ValueError("as told")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "text":
        sys.exit("a last word")
    if how == "cut":
        sys.stdout.write("no newline")
    sys.exit(argument.get("status"))


def stay(argument: dict[str, Any]) -> None:
    """Starts a child that leaves the process group, says both ids, and stays."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    say({"pid": os.getpid(), "child": child.pid})
    time.sleep(600)


def busy(argument: dict[str, Any]) -> None:
    """Computes in C for hours, as a rank does that waits for a peer there."""
    say({"pid": os.getpid()})
    sum(range(10**14))


def listen(argument: dict[str, Any]) -> None:
    """Says which of the given descriptors it holds."""
    say({"holds": Path(f"/proc/self/fd/{argument['fd']}").exists()})


def collect(argument: dict[str, Any]) -> None:
    """Says whether this rank looks for garbage, and leaves alone what was there before it."""
    say({"enabled": gc.isenabled(), "frozen": gc.get_freeze_count() > 0})


def chatter(argument: dict[str, Any]) -> None:
    """Writes a lot."""
    for number in range(argument["lines"]):
        print(number, "x" * 1000)


def pour(argument: dict[str, Any]) -> None:
    """Writes one line that is far too long."""
    print("y" * argument["size"])
