"""Hand-made runs to compare: a 2x2 lab of 200 Mbit/s, steps of a stated length in each round."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddp.fabric import Fabric
from ddp.plan import BucketLayout, ReductionPlan
from jobs.compare.comparison import ComparedRun
from jobs.figures import run_figures
from jobs.records import BaselineRecord, RankRecords
from jobs.spec import load_job
from jobs.summary import summarize
from jobs.wrapperwords import is_stock
from tests.jobs.samples import NODES, record, run_json, stock_record

MBIT_200 = 200_000_000
GRADIENT_BYTES = 2_000_000
SENT_PER_RANK = {"ring": 750_000, "hier": 500_000, "native": None, "noop": 0, "torch-ddp": None}
COUNTED = {
    "ring": 1_520_000,
    "hier": 1_020_000,
    "native": 1_530_000,
    "noop": 9_000,
    "torch-ddp": 1_540_000,
}
SUMS = {
    "ring": "aa" * 32,
    "hier": "bb" * 32,
    "native": "cc" * 32,
    "noop": None,
    "torch-ddp": "dd" * 32,
}


def compared(
    job: str,
    *rounds_ms: Sequence[float],
    label: str | None = None,
    group: str | None = "together",
    baseline_ms: float = 70,
    losses: Sequence[float] | None = None,
    sha256: str | None = None,
    sets: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
    prediction: Mapping[str, Any] | None = None,
) -> ComparedRun:
    """A run of the catalog's job; `rounds_ms` are the steps of each of its turns."""
    steps_ms = [ms for turn in rounds_ms for ms in turn]
    losses = losses or [4.0 - 0.1 * step for step in range(len(steps_ms))]
    turns = {"group": group, "rounds": len(rounds_ms), "steps_per_turn": len(rounds_ms[0])}
    about = {"turns": turns} if group else {}
    description = {**run_of(job, label or job, sets), **about, **(run or {})}
    description["job"]["train"]["steps"] = len(steps_ms)
    sums = [sha256 or SUMS[job]] * 4 if job != "noop" else [f"{rank:02d}" * 32 for rank in range(4)]
    ranks = [
        _rank(rank, job, steps_ms, losses, baseline_ms, sums[rank]) for rank in range(len(NODES))
    ]
    return ComparedRun(
        label=label or job,
        run=description,
        summary=summarize(description, ranks, prediction, None),
        figures=run_figures(ranks, NODES),
        ranks=ranks,
        prediction=prediction,
    )


def _rank(
    rank: int,
    job: str,
    steps_ms: Sequence[float],
    losses: Sequence[float],
    baseline_ms: float,
    sha256: str | None,
) -> RankRecords:
    sent = SENT_PER_RANK[job]
    counted = COUNTED[job] if rank in (0, 2) else None
    made = stock_record if job == "torch-ddp" else record
    steps = [
        replace(made(step, step_ms=ms, inter=sent, nic=counted, loss=loss), loss=loss)
        for step, (ms, loss) in enumerate(zip(steps_ms, losses, strict=True))
    ]
    baseline = [BaselineRecord(0, record(step, step_ms=baseline_ms)) for step in range(20)]
    header = {"gradient_bytes": GRADIENT_BYTES, "data": {"sha256": "da7a"}}
    end = {"params_sha256": sha256, "inter_node_bytes": None, "nic_tx_bytes": None}
    return RankRecords(header=header, steps=steps, baseline=baseline, end=end)


def run_of(job: str, run_id: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """run.json of the catalog's job, complete as far as a comparison reads it."""
    spec = load_job(job, sets).model_dump(mode="json")
    node = {"rate_bits_per_s": MBIT_200, "intra_rate_bits_per_s": None}
    run = run_json(run_id=run_id, job=spec)
    nodes = [{"name": f"node{k}", **node} for k in range(2)]
    inter = {"inter_node": {"rate": "200mbit"}}
    cluster = {"name": "2x2", "nodes": 2, "ranks_per_node": 2, "links": inter}
    plan = None if is_stock(spec) else plan_of(spec["ddp"])
    return {
        **run,
        "lab": {**run["lab"], "nodes": nodes, "cluster": cluster},
        "threads": {"per_rank": 1, "set_by_user": False},
        "host": {"cores": 8, "cpu": "a machine"},
        "versions": {"torch": "2.13"},
        "link_changes": [],
        "plan": plan.to_json() if plan else None,
        "plan_sha256": plan.sha256 if plan else None,
    }


def plan_of(ddp: Mapping[str, Any], num_buckets: int = 2) -> ReductionPlan:
    """Two buckets of 1 MB each, four ranks."""
    bucket = BucketLayout("float32", ("w",), (250_000,), 1, 0)
    buckets = tuple(replace(bucket, parameters=(f"w{k}",)) for k in range(num_buckets))
    node_of = Fabric(NODES).node_of
    return ReductionPlan(ddp["algorithm"], ddp["ring_order"], ddp["ring_seed"], node_of, buckets)


def prediction_of(rate: float | None = 25e6, **compute: Any) -> dict[str, Any]:
    """prediction.json: 70 ms without network, 40 of them backward, gradients from 10 ms on."""
    found = {
        "step_s": 0.07,
        "backward_s": 0.04,
        "bucket_bytes": [1_000_000, 1_000_000],
        "ready_s": [0.01, 0.03],
        "num_steps": 10,
    }
    node = {"out_bytes_per_s": rate, "in_bytes_per_s": rate, "intra_bytes_per_s": 1e9}
    costs = {"alpha_inter_s": 0.0005, "alpha_intra_s": 0.0001, "intra_bytes_per_s": 1e9}
    inputs = {"compute": {**found, **compute}, "links": [node, node], "calibration": costs}
    return {"schema": 1, "step_seconds": 0.1, "comm_seconds": 0.05, "inputs": inputs}
