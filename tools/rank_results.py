"""Runs a program as every rank of a lab and brings back what its ranks found.

Shared by the benchmarks. What a rank does, and what its result means, is the program's matter.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from cluster.lab import Lab
from jobs.agents import Agents
from jobs.launch import plan_ranks
from jobs.runinfo import PROJECT
from jobs.spec import load_job

RESULT_TIMEOUT_S = 300.0
KEPT_LINES = 20


def run_ranks(lab: Lab, target: str, preload: Sequence[str] = ("torch",)) -> list[Any]:
    """What `target`, module:function, told of every rank, by rank. SystemExit where it did not."""
    plan = plan_ranks(load_job("hier"), lab)  # of the job, only its placement counts
    ready: dict[int, Any] = {}
    said: deque[str] = deque(maxlen=KEPT_LINES)
    modules = (*preload, target.partition(":")[0])
    environment = plan.threads.environment()
    with Agents(lab.nodes, plan.used_nodes, modules, environment, cwd=str(PROJECT)) as agents:
        deadline_s = time.monotonic() + RESULT_TIMEOUT_S
        while (event := agents.next_event(deadline_s - time.monotonic())) is not None:
            node, content = event
            if content["event"] == "ready":
                ready[node] = content
                if len(ready) == len(plan.used_nodes):
                    for each, order in plan.start_orders(target, "", lab.name, ready).items():
                        agents.send(each, order)
            elif content["event"] == "message":
                ranks: list[Any] = content["data"]["ranks"]
                return ranks
            elif content["event"] == "log":
                said.append(content["line"])
            elif content["event"] in ("closed", "error", "exit"):
                words = "\n".join(["the benchmark's ranks ended early:", *said, str(content)])
                raise SystemExit(words)
    raise SystemExit(f"no result within {RESULT_TIMEOUT_S:.0f} s")
