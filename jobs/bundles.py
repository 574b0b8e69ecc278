"""Folders in runs/ that are no run's: comparisons, scaling tables, benches.

Owns their end: what several runs came to together goes when the last of those has gone, a bench
when there are newer ones. A folder is one of ours when the document in it names the folder; nothing
else is ever touched.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jobs.runfolder import RunFolder

DOCUMENTS = ("compare.json", "scale.json")
BENCH = ("bench.json",)


def clean_bundles(runs: Path) -> list[RunFolder]:
    """Removes those whose runs are all gone, and returns them."""
    if not runs.is_dir():
        return []
    removed = [folder for folder in _folders(runs, DOCUMENTS) if not _has_runs(runs, folder)]
    for folder in removed:
        shutil.rmtree(folder.path)
    return removed


def clean_benches(runs: Path, keep: int) -> list[RunFolder]:
    """Removes all but the last `keep`, and returns them."""
    if not runs.is_dir():
        return []
    folders = sorted(_folders(runs, BENCH), key=_created_at)
    removed = folders[: max(0, len(folders) - keep)]
    for folder in removed:
        shutil.rmtree(folder.path)
    return removed


def _created_at(folder: RunFolder) -> str:
    return str((_document(folder, BENCH) or {}).get("created_at", ""))


def _folders(runs: Path, documents: Sequence[str]) -> Iterator[RunFolder]:
    for path in sorted(runs.iterdir()):
        if path.is_dir() and not path.is_symlink() and _document(RunFolder(path), documents):
            yield RunFolder(path)


def _document(folder: RunFolder, documents: Sequence[str] = DOCUMENTS) -> dict[str, Any] | None:
    found = (folder.read(name) for name in documents)
    return next((it for it in found if it and it.get("folder") == folder.run_id), None)


def _has_runs(runs: Path, folder: RunFolder) -> bool:
    return any((runs / run_id).is_dir() for run_id in _run_ids(_document(folder)))


def _run_ids(value: Any) -> Iterator[str]:
    """Every run that the document names, wherever it does."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "run_id" and isinstance(inner, str) and inner:
                yield inner
            else:
                yield from _run_ids(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _run_ids(inner)
