"""The end of a run: summary.json and steps.csv from what its ranks recorded, however they ended.

Owns what makes a run that came to its end a failed one, and the words for one that was stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.errors import JobError, RunFailed, RunStopped
from jobs.figures import RunFigures, run_figures
from jobs.records import RankRecords
from jobs.runfolder import RunFolder
from jobs.summary import read_ranks, replicas, steps_csv, summarize


@dataclass(frozen=True)
class RunResult:
    """What is left of a run; `error` tells why it did not do what was asked."""

    folder: RunFolder
    run: Mapping[str, Any]
    figures: RunFigures
    summary: Mapping[str, Any]
    ranks: list[RankRecords]
    error: JobError | None


def conclude(folder: RunFolder, run: dict[str, Any], error: JobError | None) -> RunResult:
    """Writes summary.json and steps.csv from what the ranks recorded, however they ended."""
    ranks = read_ranks(folder.path, run["world_size"])
    _note_late_plan(folder, run, ranks)
    figures = run_figures(ranks, run["node_of"])
    error = _stop_words(error, figures, run) if isinstance(error, RunStopped) else error
    error = error or _broken_promise(ranks, figures, run)
    summary = summarize(run, ranks, folder.read("prediction.json"), error)
    folder.write("summary.json", summary)
    folder.write_text("steps.csv", steps_csv(figures))
    return RunResult(folder, run, figures, summary, ranks, error)


def _note_late_plan(folder: RunFolder, run: dict[str, Any], ranks: list[RankRecords]) -> None:
    """A plan that ranks knew only when they had done some steps."""
    header = ranks[0].header or {}
    if run.get("plan") is None and header.get("plan") is not None:
        run |= {key: header[key] for key in ("plan", "plan_sha256")}
        folder.write("run.json", run)


def _broken_promise(
    ranks: list[RankRecords], figures: RunFigures, run: Mapping[str, Any]
) -> JobError | None:
    """A run that came to its end without being what it says it is."""
    sums = [rank.end["params_sha256"] if rank.end else None for rank in ranks]
    diverged = replicas(ranks)[1] is False
    if diverged and not run["job"]["expects_divergence"]:
        listed = ", ".join(f"rank {rank} {str(each)[:8]}" for rank, each in enumerate(sums))
        return RunFailed(
            "replicas differ: the ranks ended with different parameters",
            rule="after every step all ranks hold the same parameters",
            fix="keep the run folder: it shows a bug in reducing gradients",
            seen=listed,
        )
    if figures.link_carried is False:
        return RunFailed(
            "the fabric NICs counted fewer bytes than the ranks sent",
            rule="what ranks on different nodes send crosses the link that was measured",
            fix="make cluster-down && make cluster-up",
        )
    return None


def _stop_words(stop: JobError, figures: RunFigures, run: Mapping[str, Any]) -> JobError:
    kept = len(figures.steps)
    folder = run["run_id"] if "turns" in run else "latest"
    where = f"at step {kept + 1}" if kept < run["job"]["train"]["steps"] else "after the last step"
    return RunStopped(
        f"{stop.message} {where}; {kept} steps kept in runs/{folder}; the lab is still up"
        if kept
        else f"{stop.message} before the first step was done; the lab is still up"
    )
