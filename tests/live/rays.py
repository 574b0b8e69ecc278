"""A Ray cluster inside a lab of its own for live tests, and a look at what lives there."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.rayhosts.attach import RayAsked, attached
from cluster.rayhosts.lab_ray import HEAD_PORT
from cluster.site import Attached
from tests.live.lab import TestLab, lab

LIMIT_S = 30
HEAD = "198.18.0.10"
_PROCESSES = """
import glob, json
found = []
for folder in glob.glob("/proc/[0-9]*"):
    try:
        words = open(folder + "/cmdline").read().replace(chr(0), " ").strip()
        fields = open(folder + "/stat").read().rpartition(")")[2].split()
    except OSError:
        continue
    if fields[0] not in "ZX":
        found.append([int(folder[6:]), int(fields[1]), words])
print(json.dumps(found))
"""
_HELD = """
import json, logging, sys
import ray
from ray._private.state import actors
from ray.util import placement_group_table
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False,
         logging_level=logging.CRITICAL)
groups = [it["state"] for it in placement_group_table().values() if it["state"] != "REMOVED"]
alive = [it["State"] for it in actors().values() if it["State"] != "DEAD"]
print(json.dumps([groups, alive]))
"""


@dataclass(frozen=True)
class Seen:
    """A process in the lab."""

    pid: int
    parent: int
    words: str


@contextmanager
def ray_lab(home: Path) -> Iterator[TestLab]:
    """A lab of two nodes with Ray on both."""
    with lab(home, "2x2", "--no-probe") as it:
        done = it.command("ray-up", "--lab", it.name)
        assert done.returncode == 0, done.stdout + done.stderr
        yield it


@contextmanager
def on(it: TestLab, **asked: Any) -> Iterator[Attached]:
    """The Ray cluster of that lab, attached to as commands do."""
    with pytest_environment(it):
        attaching = attached(RayAsked(**{"lab": it.name, **asked}))
        site = attaching.__enter__()
    try:
        yield site
    finally:
        attaching.__exit__(None, None, None)


@contextmanager
def pytest_environment(it: TestLab) -> Iterator[None]:
    """This process finds the lab."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = it.environment()["XDG_RUNTIME_DIR"]
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]
        if before is not None:
            os.environ["XDG_RUNTIME_DIR"] = before


def processes(it: TestLab) -> list[Seen]:
    """All that runs in the lab."""
    return [
        Seen(*each) for each in json.loads(it.in_node("node0", sys.executable, "-c", _PROCESSES))
    ]


def raylet(it: TestLab, address: str) -> Seen:
    """Ray itself on one node."""
    option = f"--node_ip_address={address}"
    (found,) = [
        each
        for each in processes(it)
        if each.words.split()[0].endswith("/raylet") and option in each.words
    ]
    return found


def actor(it: TestLab, address: str) -> Seen:
    """Ours on one node."""
    above = raylet(it, address).pid
    (found,) = [each for each in ours(it) if "ray::" in each.words and each.parent == above]
    return found


def ours(it: TestLab) -> list[Seen]:
    """What a job brings: the driver, actors, agents and ranks; not what Ray itself consists of."""
    words = ("cluster.rayhosts.driver", "ray::Host", "cluster.agent", "sleep")
    return [each for each in processes(it) if any(word in each.words for word in words)]


def of_ray(it: TestLab) -> list[Seen]:
    """What Ray itself consists of, and what it lives below."""
    words = ("/site-packages/ray/", "cluster.rayhosts", "ray::")
    return [each for each in processes(it) if any(word in each.words for word in words)]


def kill(it: TestLab, seen: Seen) -> None:
    it.in_node("node0", "sh", "-c", f"kill -9 {seen.pid}")


def held(it: TestLab) -> list[list[str]]:
    """Placement groups and actors that Ray still has, by their states."""
    told = it.in_node("node0", sys.executable, "-c", _HELD, f"{HEAD}:{HEAD_PORT}", HEAD)
    answer: list[list[str]] = json.loads(told)
    return answer


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def require_nothing_left(it: TestLab) -> None:
    """No driver, actor, agent or rank; no placement group, no actor that Ray would start again."""
    until(lambda: not ours(it))
    assert held(it) == [[], []]
