"""Run folders as a launcher and its ranks leave them, or have left them so far."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.records import read_records, records_path
from jobs.runfolder import RunFolder, create_run
from jobs.summary import summarize
from tests.jobs.samples import run_json, typical_record

WALL_NS, MONOTONIC_NS = 1_795_000_000_000_000_000, 5_000_000_000
ANCHOR = {"wall_ns": WALL_NS, "monotonic_ns": MONOTONIC_NS}


def description(
    run_id: str, num_ranks: int = 4, num_nodes: int = 2, **changes: Any
) -> dict[str, Any]:
    """run.json of a run that began at 11:04."""
    run = run_json()
    nodes = [{"name": f"node{k}", "rate_bits_per_s": 200_000_000} for k in range(num_nodes)]
    return {
        **run,
        "run_id": run_id,
        "created_at": "2026-11-30T11:04:00",
        "lab": {**run["lab"], "nodes": nodes},
        "nnodes": num_nodes,
        "world_size": num_ranks,
        "node_of": [rank * num_nodes // num_ranks for rank in range(num_ranks)],
        "probe": run["probe"] if num_nodes > 1 else None,
        "plan": {"long": "and not needed"},
        **changes,
    }


@dataclass(frozen=True)
class Ranks:
    """Writes the records of every rank of one run."""

    folder: RunFolder
    num_ranks: int

    def headers(self) -> None:
        for rank in range(self.num_ranks):
            self.line(rank, "header", gradient_bytes=3_470_000, **ANCHOR)

    def baseline(self, step_s: float = 0.198, num_steps: int = 20) -> None:
        for rank in range(self.num_ranks):
            for step in range(num_steps):
                record = typical_record(step, rank % 4).to_json()
                self.line(rank, "baseline", block=0, **{**record, "step_s": step_s})

    def step(self, number: int, rank: int | None = None, **changes: Any) -> None:
        """One step of every rank, or of one; it begins as its rank's header is written."""
        for each in range(self.num_ranks) if rank is None else [rank]:
            record = typical_record(number, each % 4).to_json()
            self.line(each, "step", **{**record, "t_ns": MONOTONIC_NS, **changes})

    def end(self, rank: int | None = None) -> None:
        for each in range(self.num_ranks) if rank is None else [rank]:
            self.line(each, "end", params_sha256="9f3a21c7" * 8, inter_node_bytes=None)

    def line(self, rank: int, kind: str, **content: Any) -> None:
        self.text(rank, json.dumps({"kind": kind, **content}, separators=(",", ":")) + "\n")

    def text(self, rank: int, text: str) -> None:
        """Anything, whether or not it is a line."""
        with records_path(self.folder.path, rank).open("a") as file:
            file.write(text)


@contextmanager
def going_on(runs: Path, name: str, num_ranks: int = 4, **changes: Any) -> Iterator[Ranks]:
    """A run whose launcher lives inside the block; after it, it was killed."""

    def describe(run_id: str) -> Mapping[str, Any]:
        return description(run_id, num_ranks, **changes)

    with create_run(runs, name, describe) as folder:
        yield Ranks(folder, num_ranks)


def ended(runs: Path, name: str, num_ranks: int = 4, steps: int = 3, **changes: Any) -> RunFolder:
    """A run that came to its end."""
    with going_on(runs, name, num_ranks, **changes) as ranks:
        ranks.headers()
        ranks.baseline()
        for number in range(steps):
            ranks.step(number)
        ranks.end()
        ranks.folder.write("prediction.json", {"step_seconds": 0.279})
        conclude(ranks.folder)
    return ranks.folder


def conclude(folder: RunFolder, **changes: Any) -> None:
    """summary.json as it is made at the end of a run."""
    run = folder.read("run.json") or {}
    records = [read_records(records_path(folder.path, k)) for k in range(run["world_size"])]
    summary = summarize(run, records, folder.read("prediction.json"), None)
    folder.write("summary.json", {**summary, **changes})
