"""`make bench-ddp`: prints the table of docs/benchmarks.md about the wrapper; with --check, fails
where a figure is under its floor.

Makes labs of its own, which are gone when this process is. Needs six minutes and a machine that
does nothing else; says so when it does.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path

from cluster.errors import ClusterError, NoLab
from cluster.lab import Lab, bring_up, take_down
from cluster.nodes import Making
from cluster.spec import load_cluster
from jobs.errors import JobError
from jobs.runinfo import num_cores
from tools.bench_ddp import bound
from tools.bench_ddp.figures import Figure
from tools.bench_ddp.table import HEAD, checks, memory, speed
from tools.rank_results import run_ranks
from tools.timing import machine

LAB, CLUSTER, RATE = "bench-ddp", "2x2", "400mbit"
PRELOAD = ("torch", "torch._dynamo")
"""The second one is stock DDP's: loaded once, not in each rank."""
LOOK_S = 1.0
QUIET = 0.1
"""Of all cores' time, what others may take before figures mean less."""


def main(words: list[str]) -> int:
    if words not in ([], ["--check"]):
        sys.stderr.write(f"bench-ddp: {' '.join(words)!r}: nothing, or --check\n")
        return 2
    print(f"Measured {date.today()}: {machine()}. By `make bench-ddp`.")
    print(f"{CLUSTER} at {RATE}, paced compute, variants a step each in turn. {quietness()}\n")
    print(HEAD)
    try:
        with own_lab(CLUSTER, RATE) as lab:
            figures = measure(lab)
        for shape in bound.SHAPES:
            with own_lab(shape.cluster, bound.RATE) as lab:
                told = run_ranks(lab, "tools.bench_ddp.bound:main", PRELOAD)
            figures.append(bound.figure(shape, told))
            print(figures[-1].row(), flush=True)
        return conclude(figures, check=bool(words))
    except (ClusterError, JobError, ValueError) as error:
        sys.stderr.write(f"bench-ddp: {error}\n")
    except KeyboardInterrupt:
        sys.stderr.write("bench-ddp: stopped; its lab is gone\n")
    return 1


@contextmanager
def own_lab(cluster: str, rate: str) -> Iterator[Lab]:
    """Inside, a lab that nobody else has; it is gone with this process, too."""
    lab = bring_up(load_cluster(cluster, rate), LAB, Making("netns"), probe=False, lasting=False)
    try:
        yield lab
    finally:
        with suppress(NoLab):
            take_down(LAB)


def measure(lab: Lab) -> list[Figure]:
    """The figures of one lab; each row is printed when it is known."""
    times = run_ranks(lab, "tools.bench_ddp.ranks:main", PRELOAD)
    held = {
        kind: run_ranks(lab, f"tools.bench_ddp.memory:{kind}", PRELOAD)
        for kind in ("ours", "stock")
    }
    figures = [*speed(times), memory(held["ours"], held["stock"]), *checks(times)]
    for figure in figures:
        print(figure.row(), flush=True)
    return figures


def conclude(figures: list[Figure], *, check: bool) -> int:
    """The last words and the exit code: 1 where a figure is under its floor and that is asked."""
    under = [figure.name for figure in figures if not figure.passes]
    if not under:
        print("\nNo figure is under its floor.")
        return 0
    print(f"\nUnder the floor: {'; '.join(under)}.")
    return int(check)


def quietness() -> str:
    """How busy the machine is now, before the benchmark adds to it."""
    before = _cpu_ticks()
    time.sleep(LOOK_S)
    busy, total = (now - then for now, then in zip(_cpu_ticks(), before, strict=True))
    load = f"Load average {os.getloadavg()[0]:.1f}, {num_cores()} cores {busy / total:.0%} busy"
    if busy / total <= QUIET:
        return f"{load}: quiet."
    return f"{load}: NOT QUIET, so the figures say little; run it again when nothing else runs."


def _cpu_ticks() -> tuple[int, int]:
    """Of all cores since the machine started: not idle, and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
