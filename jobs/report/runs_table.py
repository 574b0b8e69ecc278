"""The table of all runs: `make runs`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.report.table import Column, table
from jobs.report.text import QUIET, Lines, line, milliseconds, paragraph, percent

COLUMNS = (
    Column(("run",), right=False, cut=16),
    Column(("job",), right=False, cut=6, from_width=100),
    Column(("lab",), right=False, cut=6, from_width=120),
    Column(("steps",)),
    Column(("STEP",)),
    Column(("effi-", "ciency")),
    Column(("loss",), from_width=120),
    Column(("status",), right=False),
)


def runs_table(rows: Sequence[Mapping[str, Any]], width: int) -> Lines:
    """One row per run: run_id, job, lab, summary (None where there is none yet), state."""
    if not rows:
        return paragraph("No runs yet.    next    make run JOB=hier", width)
    cells = [_cells(row) for row in rows]
    lines = [line(text) for text in table(COLUMNS, cells, width)]
    legend = "STEP: mean; efficiency: median step without network / median step.  Files: runs/<run>"
    return [*lines, *paragraph(legend, width, indent="  ", style=QUIET, first_indent="  ")]


def _cells(row: Mapping[str, Any]) -> list[str]:
    summary = row["summary"] or {}
    step = (summary.get("step_seconds") or {}).get("mean")
    efficiency = summary.get("communication_efficiency_ratio")
    loss = summary.get("loss_last")
    return [
        row["run_id"],
        row["job"],
        row["lab"],
        str(summary["steps"]) if summary else "-",
        milliseconds(step) if step is not None else "-",
        percent(efficiency) if efficiency is not None else "-",
        f"{loss:.3f}" if loss is not None else "-",
        row["state"],
    ]
