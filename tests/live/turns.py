"""Programs of a test's own in the nodes of a lab: run to their end, or several jobs in turn.

Several jobs in one set of ranks cost one start; what each does is what `make run` does.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.lab import open_lab
from jobs.agents import Agents
from jobs.launch import plan_ranks
from jobs.runinfo import PROJECT
from jobs.spec import JobSpec
from tests.live.lab import TestLab

TIMEOUT_S = 100
JOBS_FILE = "jobs.json"
TURNS = "tests.live.turns_rank"

Lines = list[list[dict[str, Any]]]


def run_in_turn(it: TestLab, run_dir: Path, jobs: Mapping[str, JobSpec]) -> dict[str, Lines]:
    """Every line of every rank's records, ranks ascending, for each job by its name."""
    for name in jobs:
        (run_dir / name).mkdir(parents=True)
    documents = {name: job.model_dump(mode="json") for name, job in jobs.items()}
    (run_dir / JOBS_FILE).write_text(json.dumps(documents))
    num_ranks = run_ranks(it, TURNS, run_dir, next(iter(jobs.values())))
    return {
        name: [
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in (run_dir / name / f"rank{rank}.jsonl" for rank in range(num_ranks))
        ]
        for name in jobs
    }


def run_ranks(it: TestLab, target: str, run_dir: Path, job: JobSpec) -> int:
    """Runs `target.main` as every rank; returns their number when all have ended well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", it.environment()["XDG_RUNTIME_DIR"])
        plan = plan_ranks(job, opened := open_lab(it.name))
    ready: dict[int, Any] = {}
    logs: list[str] = []
    num_running = len(plan.node_of)
    environment = plan.threads.environment()
    preload = ("torch", target)
    with Agents(opened.nodes, plan.used_nodes, preload, environment, str(PROJECT)) as agents:
        deadline_s = time.monotonic() + TIMEOUT_S
        while num_running:
            event = agents.next_event(deadline_s - time.monotonic())
            assert event is not None, f"no end within {TIMEOUT_S} s: {logs}"
            node, content = event
            if content["event"] == "ready":
                ready[node] = content
                if len(ready) == len(plan.used_nodes):
                    orders = plan.start_orders(f"{target}:main", str(run_dir), it.name, ready)
                    for each, order in orders.items():
                        agents.send(each, order)
            elif content["event"] == "log":
                logs.append(content["line"])
            elif content["event"] == "exit":
                assert content["status"] == 0, (content, logs)
                num_running -= 1
            else:
                assert content["event"] not in ("closed", "error"), (content, logs)
    return len(plan.node_of)
