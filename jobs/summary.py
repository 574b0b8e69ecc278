"""summary.json and steps.csv: the figures of a run under the names other tools rely on.

Owns the keys (schema 1, a contract) and what each is made of. A figure that does not exist is
null, never 0, infinite or not a number. Reads the run folder, so it can be made again.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ddp.cost import algorithm_bandwidth, bus_bandwidth, inter_node_bound, relative_error
from jobs.clockshift import on_first_clock
from jobs.derive import PHASES, StepFigures
from jobs.errors import JobError
from jobs.figures import RunFigures, busiest, figures_of_steps, run_figures
from jobs.modelwords import compute_kind, num_reductions
from jobs.owncode import algorithm_name
from jobs.parts import RunPart, changed, split
from jobs.records import RankRecords, read_records, records_path
from jobs.spread import Spread
from jobs.verdict import bottleneck, slowest_link
from jobs.wrapperwords import wrapper_of

SCHEMA = 1
CSV_KEYS = (
    *("step", "step_s", "slowest_rank"),
    *(f"{phase}_s" for phase in PHASES),
    *("comm_work_s", "comm_busy_s", "straggler_wait_s"),
    *("inter_node_bytes", "nic_tx_bytes", "samples", "loss"),
)


class Explained(Protocol):
    """An error of cluster or of jobs: one shape for screens and JSON."""

    kind: str
    message: str
    seen: str | None
    rule: str | None
    fix: tuple[str, ...]


def read_ranks(run_dir: Path, world_size: int) -> list[RankRecords]:
    """The records of every rank, on the clock of rank 0; a rank that never wrote has none."""
    paths = [records_path(run_dir, rank) for rank in range(world_size)]
    return [on_first_clock(read_records(path)) for path in paths]


def replicas(ranks: Sequence[RankRecords]) -> tuple[str | None, bool | None]:
    """The checksum all ranks share (None where they do not), and whether they do.

    (None, None) unless every rank has come to its end.
    """
    sums = {rank.end["params_sha256"] if rank.end else None for rank in ranks}
    if None in sums or not sums:
        return None, None
    return (next(iter(sums)), True) if len(sums) == 1 else (None, False)


def error_json(error: Explained) -> dict[str, Any]:
    """The `error` of the JSON contract: {kind, message, fix}; fix is null where none is known."""
    parts = [error.message, error.seen, error.rule]
    return {
        "kind": error.kind,
        "message": "; ".join(part for part in parts if part),
        "fix": " or: ".join(error.fix) or None,
    }


def summarize(
    run: Mapping[str, Any],
    ranks: Sequence[RankRecords],
    prediction: Mapping[str, Any] | None,
    error: JobError | None,
) -> dict[str, Any]:
    """The summary of a run: `run` is run.json, `error` why it failed (None: it did not)."""
    return summarize_figures(run, run_figures(ranks, run["node_of"]), ranks, prediction, error)


def summarize_figures(
    run: Mapping[str, Any],
    figures: RunFigures,
    ranks: Sequence[RankRecords],
    prediction: Mapping[str, Any] | None,
    error: JobError | None,
) -> dict[str, Any]:
    """The same, of figures that were derived already; of `ranks` no steps are read."""
    params_sha256, ranks_agree = replicas(ranks)
    stale = changed(figures.steps, run)
    parts = [
        (part, figures_of_steps(part.steps, ranks, run["node_of"]))
        for part in split(figures.steps, run)
    ]
    return {
        "schema": SCHEMA,
        "run_id": run["run_id"],
        "job": run["job"]["name"],
        "status": "failed" if error else "ok",
        "error": error_json(error) if error else None,
        **_setting(run),
        **_times(figures, run["job"]),
        # of steps over different links a median says nothing; each part has its own
        "communication_efficiency_ratio": None if stale else figures.efficiency,
        **_bytes(figures, run),
        "link": slowest_link(run, stale),
        "parts": [_part_json(part, of_part, run) for part, of_part in parts],
        "predicted": _predicted(prediction, _as_predicted(parts) if stale else figures),
        "bottleneck": _bottleneck(figures, parts, run),
        "loss_first": figures.steps[0].loss if figures.steps else None,
        "loss_last": figures.steps[-1].loss if figures.steps else None,
        "data_order": _data_order(ranks),
        "params_sha256": params_sha256,
        "ranks_agree": ranks_agree,
    }


def _data_order(ranks: Sequence[RankRecords]) -> dict[str, int | bool | None]:
    """How many passes over the text were begun, and whether each had the order of the first.

    Null unless every rank has come to its end; one pass alone repeats nothing.
    """
    orders = [(rank.end or {}).get("data_orders", ()) for rank in ranks]
    if not all(orders) or not orders:
        return {"epochs": None, "repeats": None}
    epochs = max(map(len, orders))
    repeats = all(len(set(each)) == 1 for each in orders)
    return {"epochs": epochs, "repeats": repeats if epochs > 1 else None}


def _setting(run: Mapping[str, Any]) -> dict[str, Any]:
    job = run["job"]
    ring = job["ddp"]["algorithm"] == "ring"
    return {
        "backend": run["lab"]["backend"],
        "underlay": run["lab"]["underlay"],
        "nnodes": run["nnodes"],
        "nproc_per_node": run["nproc_per_node"],
        "world_size": run["world_size"],
        "placement": job["placement"],
        "wrapper": wrapper_of(job),
        "algorithm": algorithm_name(job["ddp"]),
        "ring_order": job["ddp"]["ring_order"] if ring else None,
        "plan_sha256": run.get("plan_sha256"),
        "model": job["model"]["kind"],
        "compute": compute_kind(job),
    }


def _times(figures: RunFigures, job: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "steps": len(figures.steps),
        "warmup_steps": job["train"]["warmup_steps"],
        "step_seconds": _spread_json(figures.step, "mean", "median", "p10", "p90", "n"),
        "phase_seconds": {phase: (figures.phase_s or {}).get(phase) for phase in PHASES},
        "comm_seconds": _comm_json(figures),
        "overlap_ratio": figures.overlap_ratio,
        "baseline_step_seconds": _spread_json(figures.baseline, "median", "p10", "p90", "n"),
        "scaling_efficiency_ratio": None,
        "scaling_baseline": None,
        "samples_per_second": figures.samples_per_s,
    }


def _comm_json(figures: RunFigures) -> dict[str, float | None]:
    return {
        "work": figures.comm_work_s,
        "busy": figures.comm_busy_s,
        "exposed": (figures.phase_s or {}).get("comm_exposed"),
        "straggler_wait": figures.straggler_wait_s,
    }


def _bytes(figures: RunFigures, run: Mapping[str, Any]) -> dict[str, Any]:
    num_nodes, num_ranks = run["nnodes"], run["world_size"]
    gradient_bytes = figures.gradient_bytes
    algbw = (
        algorithm_bandwidth(gradient_bytes * num_reductions(run["job"]), figures.comm_busy_s)
        if gradient_bytes and figures.comm_busy_s and figures.communicated
        else None
    )
    return {
        "gradient_bytes": gradient_bytes,
        "inter_node_bytes_per_step": busiest(figures.inter_node_bytes),
        "inter_node_bytes_bound": (
            None if gradient_bytes is None else inter_node_bound(gradient_bytes, num_nodes)
        ),
        "nic_tx_bytes_per_step": busiest(figures.nic_tx_bytes),
        "algbw_bytes_per_second": algbw,
        "busbw_bytes_per_second": bus_bandwidth(algbw, num_ranks) if algbw else None,
    }


Parts = Sequence[tuple[RunPart, RunFigures]]


def _part_json(part: RunPart, figures: RunFigures, run: Mapping[str, Any]) -> dict[str, Any]:
    limits = part.limits.items()
    return {
        "first_step": part.steps[0].step,
        "last_step": part.steps[-1].step,
        "links": [
            {"node": node, "direction": direction, "configured_bits_per_second": rate}
            for (node, direction), rate in limits
        ],
        "proof": ("probed" if run["probe"] else "none") if part.as_predicted else "stale",
        "step_seconds": _spread_json(figures.step, "mean", "median", "p10", "p90", "n"),
        "comm_seconds": _comm_json(figures),
        "overlap_ratio": figures.overlap_ratio,
        "communication_efficiency_ratio": figures.efficiency,
        "samples_per_second": figures.samples_per_s,
    }


def _as_predicted(parts: Parts) -> RunFigures | None:
    """The steps that went over the links the prediction was made for; None where none did."""
    return next((of_part for part, of_part in parts if part.as_predicted), None)


def _bottleneck(figures: RunFigures, parts: Parts, run: Mapping[str, Any]) -> str | None:
    if not parts:
        return bottleneck(figures, run)
    part, of_part = parts[-1]
    first, last = part.steps[0].step + 1, part.steps[-1].step + 1  # people count from 1
    sentence = bottleneck(of_part, run, part.limits)
    return f"{sentence} (Steps {first} to {last}: links were changed in this run.)"


def _predicted(prediction: Mapping[str, Any] | None, figures: RunFigures | None) -> dict[str, Any]:
    predicted_s = (prediction or {}).get("step_seconds")
    measured = figures.step if figures else None
    return {
        "step_seconds": predicted_s,
        "comm_seconds": (prediction or {}).get("comm_seconds"),
        "error_ratio": (
            relative_error(predicted_s, measured.median) if predicted_s and measured else None
        ),
    }


def _spread_json(sample: Spread | None, *keys: str) -> dict[str, float | int | None]:
    if sample is None:
        return dict.fromkeys(keys) | ({"n": 0} if "n" in keys else {})
    return {key: getattr(sample, key) for key in keys}


def steps_csv(figures: RunFigures) -> str:
    """One line per measured step: times in seconds, bytes sent by the busiest node."""
    table = io.StringIO()
    rows = [_csv_row(step) for step in figures.steps]
    writer = csv.DictWriter(table, CSV_KEYS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def _csv_row(step: StepFigures) -> dict[str, float | int | None]:
    return {
        "step": step.step,
        "step_s": step.step_s,
        "slowest_rank": step.slowest_rank,
        **{f"{phase}_s": step.phase_s[phase] for phase in PHASES},
        "comm_work_s": step.comm_work_s,
        "comm_busy_s": step.comm_busy_s,
        "straggler_wait_s": step.straggler_wait_s,
        "inter_node_bytes": busiest(step.inter_node_bytes),
        "nic_tx_bytes": busiest(step.nic_tx_bytes),
        "samples": step.samples,
        "loss": step.loss,
    }
