"""`make benchmarks`: how fast the lab is, printed as the tables of docs/benchmarks.md.

Makes a lab of its own and takes it down; needs some minutes and a machine that does nothing else.
"""

from contextlib import suppress
from datetime import date
from tempfile import TemporaryDirectory

from cluster.backends import BACKENDS
from cluster.errors import NoLab
from cluster.lab import bring_up, take_down
from cluster.nodes import Making
from cluster.spec import load_cluster
from tools.container_benchmarks import agreement_lines, container_lines
from tools.timing import ddplab, ddplab_json, first_step_s, machine, row

LAB = "benchmarks"
BACKEND = "netns"
REPEATS = 5
SIZE, ROUNDS = "16MiB", 10


def main() -> None:
    print(f"Measured {date.today()}: {machine()}. By `make benchmarks`.\n")
    print("| what | target | measured (median; all) |\n|---|---|---|")
    try:
        for line in command_lines():
            print(line, flush=True)
        print(f"\n{SIZE} of float32, 2x2 at 400mbit, algorithms in turn, {ROUNDS} rounds:\n")
        print("| algorithm | ms: median (p10 - p90) | times as fast as native | target |")
        print("|---|---|---|---|")
        for line in allreduce_lines():
            print(line)
        take_down_if_up(LAB)
        print_containers()
    finally:
        take_down_if_up(LAB)


def print_containers() -> None:
    """The tables about containers, where they can be made."""
    fit = BACKENDS["compose"].fit()
    print(f"\nContainers: {fit.reason}.\n")
    if not fit.ok:
        return
    print("| what | target | measured (median; all) |\n|---|---|---|")
    for line in container_lines(LAB):
        print(line, flush=True)
    print("\n`hier` with paced compute at 2x2 and 200mbit, the backends in turn:\n")
    print("| backend | ms a step: median; of each turn |\n|---|---|")
    for line in agreement_lines(LAB):
        print(line, flush=True)


def take_down_if_up(lab: str) -> None:
    with suppress(NoLab):
        take_down(lab)


def command_lines() -> list[str]:
    rows: dict[tuple[str, str], list[float]] = {}

    def add(what: str, target: str, seconds: float) -> None:
        rows.setdefault((what, target), []).append(seconds)

    take_down_if_up(LAB)
    for _ in range(REPEATS):
        add("`ddplab --help`", "0.3 s", ddplab("--help"))
        up_s = ddplab("up", "--lab", LAB, "--no-probe", "--backend", BACKEND)
        add("`cluster-up` of 2x2 without the probe", "2 s", up_s)
        add("the probe of 2x2", "6 s", ddplab("probe", "--lab", LAB))
        with TemporaryDirectory() as folder:
            add("`make run JOB=hier` to its first step", "10 s", first_step_s(folder, LAB))
        add("`cluster-down`", "1 s", ddplab("down", "--lab", LAB))
    return [row(what, target, seconds) for (what, target), seconds in rows.items()]


def allreduce_lines() -> list[str]:
    bring_up(load_cluster("2x2", "400mbit"), LAB, Making(BACKEND))
    rows = ddplab_json("bench", "allreduce", "--lab", LAB, "--sizes", SIZE)["rows"]
    lines = []
    for found in rows:
        time, name = found["time_s"], found["algorithm"]
        target = {"native": "", "ring": "at least 0.9", "hierarchical": "at least 1.3"}[name]
        lines.append(
            f"| {name} | {time['median'] * 1e3:.0f} "
            f"({time['p10'] * 1e3:.0f} - {time['p90'] * 1e3:.0f}) "
            f"| {found['speedup_over_native']:.2f} | {target} |"
        )
    least_s, native_s = rows[0]["limit_s"], rows[0]["time_s"]["median"]
    ceiling = f"{least_s * 1e3:.0f} | {native_s / least_s:.2f}"
    lines.append(f"| no algorithm can be faster than | {ceiling} | |")
    wrong = sum(row["wrong"] for row in rows)
    return [*lines, "", f"Wrong sums: {wrong} (every rank and round against exact integers)."]


if __name__ == "__main__":
    main()
