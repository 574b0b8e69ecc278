"""Hand-made records and run.json for tests of figures and screens. Times are milliseconds."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddp.timing import BucketTiming
from jobs.figures import RunFigures, run_figures
from jobs.records import BaselineRecord, RankRecords, StepRecord
from jobs.report.text import Lines, plain

MS = 1_000_000
NODES = (0, 0, 1, 1)


def bucket(index: int, ready: int, start: int, end: int) -> BucketTiming:
    """Times in milliseconds."""
    return BucketTiming(index, 1_000_000, ready * MS, start * MS, end * MS)


def record(
    step: int = 0,
    *,
    step_ms: float = 100,
    data: float = 0,
    forward: float = 30,
    backward: float = 50,
    exposed: Sequence[tuple[int, int]] = ((80, 95),),
    optimizer: float = 5,
    buckets: Sequence[BucketTiming] | None = (bucket(0, 50, 50, 70), bucket(1, 80, 80, 95)),
    inter: int | None = 500_000,
    nic: int | None = None,
    loss: float | None = 4.0,
) -> StepRecord:
    """Milliseconds; `other` is what remains. By default 15 ms are exposed."""
    waited = sum(end - start for start, end in exposed)
    other = step_ms - data - forward - backward - waited - optimizer
    return StepRecord(
        step=step,
        t_ns=0,
        step_s=step_ms / 1e3,
        data_s=data / 1e3,
        forward_s=forward / 1e3,
        backward_s=backward / 1e3,
        comm_exposed_s=waited / 1e3,
        optimizer_s=optimizer / 1e3,
        other_s=other / 1e3,
        exposed=tuple((start * MS, end * MS) for start, end in exposed),
        buckets=None if buckets is None else tuple(buckets),
        intra_node_bytes=1_000_000,
        inter_node_bytes=inter,
        samples=8,
        loss=loss,
        nic_tx_bytes=nic,
        nic_rx_bytes=nic,
    )


def stock_record(step: int = 0, **changes: Any) -> StepRecord:
    """As of a rank with torch's own class: neither its buckets nor its payload are told."""
    made = record(step, **{"buckets": None, "inter": None, "nic": 3_000_000, **changes})
    return replace(made, intra_node_bytes=None)


def stock_run(**changes: Any) -> dict[str, Any]:
    """run.json of such a run."""
    job = run_json()["job"]
    ddp = {"wrapper": "torch", "algorithm": "native", "ring_order": "contiguous"}
    own = {"job": {**job, "name": "torch-ddp", "ddp": ddp}, "plan": None, "plan_sha256": None}
    return run_json(**own, **changes)


def ranks_of(
    steps: Sequence[Sequence[StepRecord]],
    baseline_ms: Sequence[float] = (70,) * 20,
    sums: Sequence[str | None] = ("ab" * 32,) * 4,
) -> list[RankRecords]:
    """`steps[rank]` are its records; all ranks have the same baseline."""
    ranks = []
    for rank, (records, digest) in enumerate(zip(steps, sums, strict=False)):
        ranks.append(
            RankRecords(
                header={"gradient_bytes": 2_000_000, "model_parameters": 500_000},
                steps=list(records),
                baseline=[
                    BaselineRecord(index % 2, record(index, step_ms=ms))
                    for index, ms in enumerate(baseline_ms)
                ],
                end={
                    "params_sha256": digest,
                    "data_orders": [f"order of rank {rank}"],
                    "inter_node_bytes": 1_000_000,
                    "nic_tx_bytes": 2_090_000 if rank in (0, 2) else None,
                }
                if digest
                else None,
            )
        )
    return ranks


def run_json(**changes: Any) -> dict[str, Any]:
    """run.json of a 2x2 lab, as far as a summary reads it."""

    def link(src: str, dst: str, mode: str, rate: float) -> dict[str, Any]:
        ceiling = {"configured_bits_per_second": 200_000_000, "ceiling_bytes_per_second": 23.9e6}
        free = {"configured_bits_per_second": None, "ceiling_bytes_per_second": None}
        limits = free if mode == "intra_node" else ceiling
        return {"src": src, "dst": dst, "mode": mode, "measured_bytes_per_second": rate, **limits}

    return {
        "run_id": "20261130-1104-hier-2x2-200mbit",
        "job": {
            "name": "hier",
            "model": {"kind": "byte-gpt", "layers": 4, "width": 128, "context": 64},
            "data": {"batch_size": 8},
            "train": {"steps": 30, "warmup_steps": 3, "accumulate": 1},
            "ddp": {"algorithm": "hierarchical", "ring_order": "contiguous"},
            "pace": {"forward_ms": 60, "backward_ms": 120},
            "placement": "contiguous",
            "expects_divergence": False,
            "baseline_steps": 20,
            "inject": None,
        },
        "lab": {
            "name": "default",
            "backend": "netns",
            "underlay": "netns",
            "nodes": [
                {"name": "node0", "rate_bits_per_s": 200_000_000},
                {"name": "node1", "rate_bits_per_s": 200_000_000},
            ],
        },
        "probe": {
            "links": [
                link("node0", "node1", "one_way", 23.8e6),
                link("node1", "node0", "both_ways", 20.0e6),
                link("node0", "node0", "intra_node", 1.0e6),
            ]
        },
        "host": {"cores": 8},
        "nnodes": 2,
        "nproc_per_node": 2,
        "world_size": 4,
        "node_of": list(NODES),
        "plan_sha256": "feed",
        **changes,
    }


def figures_of(*records: StepRecord) -> RunFigures:
    """One step; four ranks."""
    return run_figures(ranks_of([[each] for each in records]), NODES)


def alike(**changes: Any) -> RunFigures:
    """One step that is the same on four ranks."""
    return figures_of(*[record(**changes)] * 4)


def typical_record(step: int, rank: int) -> StepRecord:
    """286 ms: forward 61, backward 122, optimizer 8.4, exposed 88.6, data 1, the rest 5.

    Rank 3 is ready 5 ms after the others, which wait for it.
    """
    late = 5 if rank == 3 else 0
    ready = 184 + late
    return StepRecord(
        step=step,
        t_ns=0,
        step_s=0.286,
        data_s=0.001,
        forward_s=0.061,
        backward_s=0.122 + late / 1e3,
        comm_exposed_s=0.0886 - late / 1e3,
        optimizer_s=0.0084,
        other_s=0.005,
        exposed=((ready * MS, 272_600_000),),
        buckets=(
            BucketTiming(0, 1_735_000, 101 * MS, 101 * MS, 184 * MS),
            BucketTiming(1, 1_735_000, ready * MS, ready * MS, 272_600_000),
        ),
        intra_node_bytes=3_470_000,
        inter_node_bytes=1_735_000,
        samples=8,
        loss=3.83 - step * 0.04,
        nic_tx_bytes=3_630_000 if rank in (0, 2) else None,
        nic_rx_bytes=3_630_000 if rank in (0, 2) else None,
    )


def typical_ranks() -> list[RankRecords]:
    made = []
    for rank in range(4):
        baseline = [
            BaselineRecord(0, replace(typical_record(k, rank), step_s=0.198)) for k in range(20)
        ]
        header = {
            "gradient_bytes": 3_470_000,
            "model_parameters": 868_000,
            "initial_params_sha256": "start",
        }
        sent = {"inter_node_bytes": 1_735_000 * 30}
        counted = {"nic_tx_bytes": 3_630_000 * 30 if rank in (0, 2) else None}
        orders = {"data_orders": [f"order of rank {rank}"]}
        end = {"params_sha256": "9f3a21c7" * 8, **orders, **sent, **counted}
        steps = [typical_record(k, rank) for k in range(30)]
        made.append(RankRecords(header=header, steps=steps, baseline=baseline, end=end))
    return made


def text_of(lines: Lines, width: int) -> str:
    """The screen as a terminal of that width shows it; fails if a line is too long for it."""
    text = plain(lines)
    assert [line for line in text.splitlines() if len(line) > width] == []
    return text


def flat(text: str) -> str:
    """The words alone, so that a sentence can be found wherever it was wrapped."""
    return re.sub(r"\s+", " ", text)
