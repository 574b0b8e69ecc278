"""`make benchmarks`: how fast the lab is, printed as the tables of docs/benchmarks.md.

Makes a lab of its own and takes it down; needs some minutes and a machine that does nothing else.
"""

import platform
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster.backends import BACKENDS
from cluster.errors import NoLab
from cluster.lab import Lab, bring_up, take_down
from cluster.nodes import Making
from cluster.spec import load_cluster
from ddp.cost import inter_node_bound
from jobs.agents import Agents
from jobs.launch import plan_ranks
from jobs.rankplan import RankPlan
from jobs.runinfo import PROJECT, num_cores
from jobs.spec import load_job
from tools.allreduce_rank import ALGORITHMS, ROUNDS, SIZE_BYTES
from tools.container_benchmarks import agreement_lines, container_lines
from tools.timing import ddplab, first_step_s, row

LAB = "benchmarks"
BACKEND = "netns"
REPEATS = 5
RESULT_TIMEOUT_S = 300.0


def main() -> None:
    print(f"Measured {date.today()}: {machine()}. By `make benchmarks`.\n")
    print("| what | target | measured (median; all) |\n|---|---|---|")
    try:
        for line in command_lines():
            print(line, flush=True)
        print(f"\n16 MiB of float32, 2x2 at 400mbit, algorithms in turn, {ROUNDS} rounds:\n")
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


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gib = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    cpu = names[0] if names else platform.machine()
    return f"{num_cores()} cores ({cpu}), {memory_gib:.0f} GiB, Linux {platform.release()}"


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
    lab = bring_up(load_cluster("2x2", "400mbit"), LAB, Making(BACKEND))
    assert lab.probe is not None
    measured = [
        link["measured_bytes_per_second"]
        for link in lab.probe.to_json()["links"]
        if link["mode"] == "both_ways"
    ]
    wire_s = inter_node_bound(SIZE_BYTES, lab.spec.nodes) / min(measured)
    ranks = run_ranks(plan_ranks(load_job("hier"), lab), lab)
    wrong = sum(rank["num_wrong"] for rank in ranks)
    lines = []
    native_s: Sequence[float] = ()
    for name in ALGORITHMS:
        rounds_s = [max(each) for each in zip(*(r["times_s"][name] for r in ranks), strict=True)]
        native_s = native_s or rounds_s
        deciles = statistics.quantiles(rounds_s, n=10)
        gain = statistics.median(n / own for n, own in zip(native_s, rounds_s, strict=True))
        target = {"native": "", "ring": "at least 0.9", "hierarchical": "at least 1.3"}[name]
        lines.append(
            f"| {name} | {statistics.median(rounds_s) * 1e3:.0f} "
            f"({deciles[0] * 1e3:.0f} - {deciles[-1] * 1e3:.0f}) | {gain:.2f} | {target} |"
        )
    ceiling = statistics.median(native_s) / wire_s
    lines.append(f"| no algorithm can be faster than | {wire_s * 1e3:.0f} | {ceiling:.2f} | |")
    return [*lines, "", f"Wrong sums: {wrong} (every rank and round against exact integers)."]


def run_ranks(plan: RankPlan, lab: Lab) -> list[dict[str, Any]]:
    """What every rank measured, by rank."""
    ready: dict[int, Any] = {}
    preload = ("torch", "tools.allreduce_rank")
    environment = plan.threads.environment()
    with Agents(lab.nodes, plan.used_nodes, preload, environment, cwd=str(PROJECT)) as agents:
        deadline_s = time.monotonic() + RESULT_TIMEOUT_S
        while (event := agents.next_event(deadline_s - time.monotonic())) is not None:
            node, content = event
            if content["event"] == "ready":
                ready[node] = content
                if len(ready) == len(plan.used_nodes):
                    orders = plan.start_orders("tools.allreduce_rank:main", "", LAB, ready)
                    for each, order in orders.items():
                        agents.send(each, order)
            elif content["event"] == "message":
                ranks: list[dict[str, Any]] = content["data"]["ranks"]
                return ranks
            elif content["event"] in ("closed", "error", "exit"):
                raise SystemExit(f"the benchmark's ranks ended early: {content}")
    raise SystemExit(f"no result within {RESULT_TIMEOUT_S:.0f} s")


if __name__ == "__main__":
    main()
