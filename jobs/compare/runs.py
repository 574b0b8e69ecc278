"""Runs as they are compared: those just made, or finished ones out of their folders.

Owns how runs are named, by their folder, by a comparison they were part of, or as the latest, and
what makes a run unfit. Starts nothing.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from jobs.compare.comparison import ComparedRun
from jobs.conclude import RunResult
from jobs.errors import CompareError
from jobs.figures import run_figures
from jobs.runfolder import LATEST, RunFolder, list_runs
from jobs.summary import read_ranks

BUNDLE_FILE = "compare.json"


def labels(names: Sequence[str]) -> list[str]:
    """The names, the second of a kind as `ring-2`, so that each row has one of its own."""
    found: list[str] = []
    for name in names:
        number, label = 1, name
        while label in found:
            number += 1
            label = f"{name}-{number}"
        found.append(label)
    return found


def of_result(label: str, result: RunResult) -> ComparedRun:
    return ComparedRun(
        label=label,
        run=result.run,
        summary=result.summary,
        figures=result.figures,
        ranks=result.ranks,
        prediction=result.folder.read("prediction.json"),
    )


def find_runs(runs: Path, names: Sequence[str]) -> list[ComparedRun]:
    """Finished runs of these names. Raises CompareError for one that is not there, or not fit."""
    folders = [folder for name in names for folder in _named(runs, name)]
    unique = list({folder.path: folder for folder in folders}.values())
    jobs = [str((folder.read("run.json") or {})["job"]["name"]) for folder in unique]
    return [_load(label, folder) for label, folder in zip(labels(jobs), unique, strict=True)]


def _named(runs: Path, name: str) -> list[RunFolder]:
    """`runs/` before it and `/` behind it do no harm: a shell completes so."""
    known = {folder.run_id: folder for folder in list_runs(runs)}
    short = name.removeprefix(f"{runs}/").rstrip("/")
    if short == LATEST and (runs / LATEST).is_symlink():
        short = (runs / LATEST).readlink().name
    run_ids = [short] if short in known else _parts(RunFolder(runs / short)) or [short or name]
    for run_id in run_ids:
        if run_id not in known:
            nearest = get_close_matches(run_id, known, n=1)
            raise CompareError(
                f"{run_id}: no run of this folder's {runs}/",
                rule="RUNS names finished runs, or a comparison, by their folders in it",
                fix=f'RUNS="{nearest[0]} ..."' if nearest else "look at the list: make runs",
            )
    return [known[run_id] for run_id in run_ids]


def _parts(folder: RunFolder) -> list[str]:
    """The runs of a comparison; none where there is no such. CompareError for one not ours."""
    bundle = folder.read(BUNDLE_FILE)
    if bundle is None:
        return []
    try:
        parts = [str(summary["run_id"]) for summary in bundle["jobs"]]
    except (KeyError, TypeError):
        parts = []
    if not parts or bundle.get("folder") != folder.run_id:
        raise CompareError(
            f"{folder.path / BUNDLE_FILE}: not as make compare wrote it",
            rule="it names the folder that it lies in, and each of its runs by its run_id",
            fix="name the runs themselves: make runs",
        )
    return parts


def _load(label: str, folder: RunFolder) -> ComparedRun:
    run, summary = folder.read("run.json"), folder.read("summary.json")
    assert run is not None
    if folder.is_running() or summary is None or summary["status"] != "ok":
        state = "still going on" if folder.is_running() else "not a run that came to its end"
        raise CompareError(
            f"{folder.run_id}: {state}",
            rule="only runs that did what was asked can be held side by side",
            fix="make runs lists them with their status",
            seen=((summary or {}).get("error") or {}).get("message"),
        )
    ranks = read_ranks(folder.path, run["world_size"])
    return ComparedRun(
        label=label,
        run=run,
        summary=summary,
        figures=run_figures(ranks, run["node_of"]),
        ranks=ranks,
        prediction=folder.read("prediction.json"),
    )
