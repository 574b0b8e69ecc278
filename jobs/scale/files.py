"""What `scale` leaves behind: scale.json and scale.csv in a folder of their own, and each run's
scaling efficiency in that run's own summary.json. Everything whole or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster.units import format_rate
from jobs.errors import JobError
from jobs.runfolder import RunFolder, claim_folder, run_name
from jobs.runinfo import num_cores
from jobs.scale.plan import ScalePlan
from jobs.scale.rows import ScaleRow, row_json, rows_csv
from jobs.summary import error_json

SCHEMA = 1


@dataclass(frozen=True)
class ScaleFiles:
    """One folder in `runs`; `about` is what does not change from size to size."""

    folder: RunFolder
    about: dict[str, Any]

    @classmethod
    def create(cls, plan: ScalePlan, rounds: int, turn_steps: int, runs: Path) -> "ScaleFiles":
        """A new folder. Raises RecordsError where it cannot be made."""
        now = datetime.now().astimezone()
        rate = format_rate(plan.cluster.links.inter_node.rate_bits_per_s)
        folder = claim_folder(runs, run_name("scale", plan.cluster.name, rate, now))
        about = {
            "folder": folder.run_id,
            "created_at": now.isoformat(timespec="milliseconds"),
            "scaling": plan.scaling,
            "cluster": plan.cluster.to_dict(),
            "sizes": [[size.nodes, size.ranks_per_node] for size in plan.sizes],
            "rounds": rounds,
            "steps_per_turn": turn_steps,
            "cores": num_cores(),
        }
        return cls(folder, about)

    def write(self, rows: Sequence[ScaleRow], error: JobError | None, complete: bool) -> None:
        """Replaces both files, and tells each run what it came to."""
        for row in rows:
            self._tell_run(row)
        self.folder.write("scale.json", scale_json(self.about, rows, error, complete))
        self.folder.write_text("scale.csv", rows_csv(rows))

    def _tell_run(self, row: ScaleRow) -> None:
        run = RunFolder(self.folder.path.parent / row.run_id)
        figures = {
            "scaling_efficiency_ratio": row.efficiency,
            "scaling_baseline": row.baseline,
        }
        summary = run.read("summary.json")
        if summary is not None and not figures.items() <= summary.items():
            run.write("summary.json", {**summary, **figures})


def scale_json(
    about: dict[str, Any], rows: Sequence[ScaleRow], error: JobError | None, complete: bool
) -> dict[str, Any]:
    """What `scale --json` prints: the rows of every job, from one rank alone on."""
    return {
        "schema": SCHEMA,
        **about,
        "complete": complete,
        "error": error_json(error) if error else None,
        "jobs": [
            {"job": job, "sizes": [row_json(row) for row in rows if row.job == job]}
            for job in dict.fromkeys(row.job for row in rows)
        ],
    }
