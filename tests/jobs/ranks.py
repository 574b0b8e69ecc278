"""Runs ranks of a job through rank_host.py, and looks at what they leave."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.records import RankRecords, read_records, records_path
from jobs.spec import catalog, load_job

ROOT = Path(__file__).parents[2]
TINY_GPT = ("model.layers=2", "model.width=32", "model.heads=2", "model.context=16")
TINY = (
    "data.batch_size=2",
    "train.steps=4",
    "train.warmup_steps=1",
    "ddp.bucket_cap_mb=0.05",
    "ddp.timeout_s=10",
    "pace=null",
)
RunRanks = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@contextmanager
def rank_host() -> Iterator[RunRanks]:
    """Runs ranks with the arguments given to their end."""
    host = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("rank_host.py"))],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdin is not None
    assert host.stdout is not None

    def run(arguments: list[dict[str, Any]]) -> list[dict[str, Any]]:
        host.stdin.write(json.dumps(arguments) + "\n")
        host.stdin.flush()
        return json.loads(host.stdout.readline())

    try:
        yield run
    finally:
        host.stdin.close()
        host.stdout.close()
        host.kill()
        host.wait()


def arguments(
    run_dir: Path, job: str, *sets: str, node_of: tuple[int, ...] = (0, 1)
) -> list[dict[str, Any]]:
    run_dir.mkdir(exist_ok=True)
    if job in catalog() and load_job(job).model.kind == "byte-gpt":
        sets = (*TINY_GPT, *sets)
    rate = {"out_bytes_per_s": 1e7, "in_bytes_per_s": 1e7, "intra_bytes_per_s": 1e8}
    return [
        {
            "run_dir": str(run_dir),
            "run_id": "test",
            "job": load_job(job, (*TINY, *sets)).model_dump(mode="json"),
            "rank": rank,
            "local_rank": node_of[:rank].count(node),
            "world_size": len(node_of),
            "nnodes": len(set(node_of)),
            "nproc_per_node": len(node_of) // len(set(node_of)),
            "node": node,
            "node_name": f"node{node}",
            "node_of": list(node_of),
            "master_addr": "127.0.0.1",
            "interface": "lo",
            "links": [rate] * len(set(node_of)),
            "threads": 1,
        }
        for rank, node in enumerate(node_of)
    ]


def records(run_dir: Path, num_ranks: int = 2) -> list[RankRecords]:
    return [read_records(records_path(run_dir, rank)) for rank in range(num_ranks)]


def assert_finished(ranks: list[dict[str, Any]]) -> None:
    assert [rank["status"] for rank in ranks] == [0] * len(ranks), [rank["log"] for rank in ranks]


def final_sums(run_dir: Path) -> list[str]:
    ends = [rank.end for rank in records(run_dir)]
    return [end["params_sha256"] for end in ends if end]


def failures(ranks: list[dict[str, Any]]) -> list[str]:
    """What each rank told its launcher; every one failed."""
    assert [rank["status"] for rank in ranks] == [1] * len(ranks), ranks
    return [rank["events"][-1]["message"] for rank in ranks]
