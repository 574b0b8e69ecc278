"""What a comparison leaves behind: compare.json and compare.csv, in a folder beside its runs'.

Owns the documents. The folder is no run's: it names the runs that it is made of, and goes when
they are cleaned away.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec
from cluster.units import format_rate
from jobs.compare.comparison import LOSS_TOLERANCE, Comparison, Row
from jobs.compare.gate import GateResult
from jobs.compare.runs import BUNDLE_FILE
from jobs.errors import JobError
from jobs.runfolder import RunFolder, claim_folder, run_name
from jobs.summary import error_json

SCHEMA = 1
CSV_KEYS = (
    *("job", "run_id", "algorithm", "base"),
    *("step_mean_s", "step_median_s", "step_p10_s", "step_p90_s", "steps"),
    *("network_wait_s", "sent_bytes_per_step", "sent_counted_by_nic"),
    *("speed_up", "speed_up_low", "speed_up_high", "at_most"),
    *("communication_efficiency_ratio", "loss_last", "params_sha256"),
)


def comparison_json(
    summaries: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    comparison: Comparison | None,
    differences: Sequence[str],
    gated: GateResult | None,
    error: JobError | None,
) -> dict[str, Any]:
    """The document of `compare --json` and of compare.json; summaries in the order asked.

    Without a comparison, because the runs failed, it holds their summaries and why.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "jobs": list(summaries),
        "labels": list(labels),
        "differences": list(differences),
        "error": error_json(error) if error else None,
    }
    if comparison is None:
        return document
    losses, forecast = comparison.losses, comparison.forecast
    return {
        **document,
        "base": comparison.base,
        "took_turns": comparison.together,
        "turns": comparison.rows[0].it.run.get("turns") if comparison.together else None,
        "rows": [_row(row) for row in comparison.rows],
        "no_network": {name: asdict(steps) for name, steps in comparison.no_network.items()},
        "losses": {**asdict(losses), "tolerance": LOSS_TOLERANCE},
        "forecast": asdict(forecast) if forecast else None,
        "faults": list(comparison.faults),
        "max_slowdown": asdict(gated) if gated else None,
    }


def _row(row: Row) -> dict[str, Any]:
    sent, it = row.sent_bytes, row.it
    return {
        "label": it.label,
        "run_id": it.summary["run_id"],
        "job": it.summary["job"],
        "algorithm": it.summary["algorithm"],
        "step_seconds": asdict(it.step),
        "network_wait_seconds": it.figures.network_wait_s,
        "sent_bytes_per_step": sent[0] if sent else None,
        "sent_counted_by_nic": sent[1] if sent else None,
        "speed_up": asdict(row.speed_up),
        "at_most": row.at_most,
        "communication_efficiency_ratio": it.summary["communication_efficiency_ratio"],
        "loss_last": it.summary["loss_last"],
        "params_sha256": it.summary["params_sha256"],
    }


def comparison_csv(comparison: Comparison) -> str:
    """A line for each row of the table, in seconds and bytes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_KEYS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_row(_row(row), comparison.base) for row in comparison.rows)
    writer.writerows(
        {"job": name, "base": comparison.base, **_csv_steps(asdict(steps))}
        for name, steps in comparison.no_network.items()
    )
    return text.getvalue()


def _csv_row(row: Mapping[str, Any], base: str) -> dict[str, Any]:
    ratio = row["speed_up"]
    flat = {key: row[key] for key in CSV_KEYS if key in row and key not in ("job", "speed_up")}
    return {
        **flat,
        "job": row["label"],
        "base": base,
        **_csv_steps(row["step_seconds"]),
        "network_wait_s": row["network_wait_seconds"],
        "speed_up": ratio["value"],
        "speed_up_low": ratio["low"],
        "speed_up_high": ratio["high"],
    }


def _csv_steps(steps: Mapping[str, Any]) -> dict[str, Any]:
    spread = {f"step_{key}_s": steps[key] for key in ("mean", "median", "p10", "p90")}
    return {**spread, "steps": steps["n"]}


def write_bundle(
    runs: Path,
    run: Mapping[str, Any],
    document: Mapping[str, Any],
    comparison: Comparison | None,
) -> RunFolder:
    """Both files in a new folder, named after the lab of one of the runs (its run.json).

    Raises RecordsError where it cannot be made.
    """
    cluster = ClusterSpec.from_dict(run["lab"]["cluster"])
    rate = format_rate(cluster.links.inter_node.rate_bits_per_s)
    size = f"{cluster.nodes}x{cluster.ranks_per_node}"
    now = datetime.now().astimezone()

    def fill(folder: RunFolder, name: str) -> None:
        about = {"folder": name, "created_at": now.isoformat(timespec="milliseconds")}
        folder.write(BUNDLE_FILE, {**document, **about})
        if comparison:
            folder.write_text("compare.csv", comparison_csv(comparison))

    return claim_folder(runs, run_name("compare", size, rate, now), fill)
