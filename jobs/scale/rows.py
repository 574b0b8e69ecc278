"""The rows of a scaling table, for screens and files: one job at one size, and what it is held
against.

Owns which run is whose reference, and the names under which figures are written down. A figure
that does not exist is null.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.conclude import RunResult
from jobs.scale import arithmetic
from jobs.scale.arithmetic import Lost, SizeFigures
from jobs.scale.plan import ONE_RANK, SCALINGS, ScalePlan, Size

LOST_PARTS = ("network", "slower_rank", "contention", "other", "total")
Runs = Mapping[Size, Sequence[RunResult]]


@dataclass(frozen=True)
class ScaleRow:
    """One run that came to its end. `crowded`: its ranks share cores, and its computing is real.

    `one_rank` and `one_node` are the same job's references; the second is not always run.
    """

    job: str
    size: Size
    run_id: str
    strong: bool
    crowded: bool
    figures: SizeFigures
    one_rank: SizeFigures
    one_rank_run: str
    one_node: SizeFigures | None

    @property
    def withheld(self) -> str | None:
        return arithmetic.withheld(self.one_rank)

    @property
    def node_withheld(self) -> str | None:
        """Why there is no `node_efficiency`; None also where there is nothing to withhold."""
        return arithmetic.node_withheld(self._full_node) if self._full_node else None

    @property
    def _full_node(self) -> SizeFigures | None:
        """What whole nodes are held against; None for one rank alone, which is less than one."""
        node = self.one_node
        return node if node and self.figures.num_ranks >= node.num_ranks else None

    @property
    def efficiency(self) -> float | None:
        return None if self.withheld else arithmetic.efficiency(self.figures, self.one_rank)

    @property
    def node_efficiency(self) -> float | None:
        if self._full_node is None or self.node_withheld:
            return None
        return arithmetic.node_efficiency(self.figures, self._full_node)

    @property
    def predicted(self) -> float | None:
        return (
            None if self.withheld else arithmetic.predicted_efficiency(self.figures, self.one_rank)
        )

    @property
    def off_by(self) -> float | None:
        """Predicted less measured efficiency."""
        if self.predicted is None or self.efficiency is None:
            return None
        return self.predicted - self.efficiency

    @property
    def lost(self) -> Lost | None:
        """None for one rank alone: nothing is lost against itself."""
        if self.withheld or self.figures.num_ranks == 1:
            return None
        return arithmetic.lost(self.figures, self.one_rank)

    @property
    def baseline(self) -> dict[str, str] | None:
        """What the efficiency is relative to, as the run's own summary says it."""
        if self.withheld:
            return None
        text = (
            f"{SCALINGS[self.strong]} scaling: throughput / ({self.figures.num_ranks} x throughput "
            "of the same job on 1 node with 1 rank)"
        )
        return {"run_id": self.one_rank_run, "text": text}


def scale_rows(plan: ScalePlan, runs: Runs, num_cores: int) -> list[ScaleRow]:
    """A row for each run, job by job, as asked. `runs`: sizes at which all have ended well."""
    rows = []
    for job in plan.jobs:
        found = {size: result for size in plan.sizes if (result := _of(runs, size, job.name))}
        figures = {size: _figures(result) for size, result in found.items()}
        one_rank = figures.get(ONE_RANK)
        if one_rank is None:
            continue
        for size, result in found.items():
            mine = figures[size]
            real = result.summary["compute"] == "real"
            if mine is not None:
                rows.append(
                    ScaleRow(
                        job=job.name,
                        size=size,
                        run_id=result.folder.run_id,
                        strong=plan.strong,
                        crowded=real and size.num_ranks > num_cores,
                        figures=mine,
                        one_rank=one_rank,
                        one_rank_run=found[ONE_RANK].folder.run_id,
                        one_node=figures.get(plan.full_node),
                    )
                )
    return rows


def _of(runs: Runs, size: Size, job: str) -> RunResult | None:
    return next((each for each in runs.get(size, ()) if each.summary["job"] == job), None)


def _figures(result: RunResult) -> SizeFigures | None:
    prediction = result.folder.read("prediction.json")
    return arithmetic.size_figures(result.figures, result.ranks, result.run["nnodes"], prediction)


def row_json(row: ScaleRow) -> dict[str, Any]:
    """Seconds are means over the counted steps of one run."""
    figures = row.figures
    return {
        "job": row.job,
        "run_id": row.run_id,
        "nnodes": row.size.nodes,
        "nproc_per_node": row.size.ranks_per_node,
        "world_size": row.size.num_ranks,
        "ranks_share_cores": row.crowded,
        "samples_per_step": figures.samples,
        "samples_per_second": figures.samples_per_s,
        "step_seconds": figures.step_s,
        "no_network_step_seconds": figures.no_network_s,
        "predicted_step_seconds": figures.predicted_step_s,
        "scaling_efficiency_ratio": row.efficiency,
        "predicted_scaling_efficiency_ratio": row.predicted,
        "node_scaling_efficiency_ratio": row.node_efficiency,
        "scaling_baseline": row.baseline,
        "withheld": row.withheld,
        "node_withheld": row.node_withheld,
        "lost_seconds": _lost_json(row.lost),
    }


def _lost_json(lost: Lost | None) -> dict[str, float] | None:
    return {part: getattr(lost, f"{part}_s") for part in LOST_PARTS} if lost else None


def rows_csv(rows: Sequence[ScaleRow]) -> str:
    """A line for each row; nested names are joined with an underscore."""
    lines = [_flat(row_json(row)) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    lost = row["lost_seconds"] or {}
    baseline = (row["scaling_baseline"] or {}).get("run_id")
    changed = {"lost_seconds", "scaling_baseline"}
    return {
        **{key: value for key, value in row.items() if key not in changed},
        "scaling_baseline_run_id": baseline,
        **{f"lost_{part}_seconds": lost.get(part) for part in LOST_PARTS},
    }
