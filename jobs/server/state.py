"""/api/state: everything a page shows, as one JSON document. Owns its keys (schema 1)."""

import math
import time
from collections.abc import Mapping
from typing import Any

from jobs.server.store import Snapshot
from jobs.server.totals import RankTotals
from jobs.server.watched import RunView

SCHEMA = 1


def state(snapshot: Snapshot, runs_folder: str) -> dict[str, Any]:
    """Runs from the newest to the oldest. A figure that does not exist is null."""
    document = {
        "schema": SCHEMA,
        "runs_folder": runs_folder,
        "at": time.time(),
        "runs": [_run(run) for run in snapshot.runs],
        "left_out": [{"folder": it.folder, "reason": it.reason} for it in snapshot.left_out],
    }
    plain: dict[str, Any] = _plain(document)
    return plain


def _run(run: RunView) -> dict[str, Any]:
    """`summary` has the keys of summary.json, also while the run goes on."""
    return {
        "run_id": run.run_id,
        "job": run.job,
        "algorithm": run.algorithm,
        "state": run.state,
        "created_at": run.created_at,
        "lab": run.lab,
        "nnodes": run.num_nodes,
        "world_size": run.num_ranks,
        "steps_asked": run.steps_asked,
        "notes": list(run.notes),
        "steps_done": run.totals.steps if run.totals else (run.summary or {}).get("steps"),
        "predicted_step_seconds": (run.prediction or {}).get("step_seconds"),
        "summary": run.summary,
        "ranks": [_rank(rank) for rank in run.ranks],
        "links": [vars(link) for link in run.links],
    }


def _rank(rank: RankTotals) -> dict[str, Any]:
    """Sums over the steps that all ranks have done, and the newest step of this one."""
    return {
        "rank": rank.rank,
        "node": rank.node,
        "last_step": rank.last_step,
        "last_step_ended_at": rank.last_ended_at,
        "last_step_phase_seconds": rank.last_phase_s or None,
        "phase_seconds": rank.phase_s,
        "comm_busy_seconds": rank.comm_s["busy"],
        "comm_hidden_seconds": rank.comm_s["hidden"],
        "straggler_wait_seconds": rank.comm_s["straggler_wait"],
        "sent_bytes": rank.sent_bytes,
        "nic_bytes": rank.nic_bytes,
    }


def _plain(value: Any) -> Any:
    """The same without numbers that JSON does not know: whoever wrote them, a page can read it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
