"""Folders in runs/ that hold what several runs came to together: comparisons, scaling tables.

Owns their end: one goes when the last of the runs that it is made of has gone. A folder is one of
ours when the document in it names the folder; nothing else is ever touched.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.runfolder import RunFolder

DOCUMENTS = ("compare.json", "scale.json")


def clean_bundles(runs: Path) -> list[RunFolder]:
    """Removes those whose runs are all gone, and returns them."""
    if not runs.is_dir():
        return []
    removed = [folder for folder in _bundles(runs) if not _has_runs(runs, folder)]
    for folder in removed:
        shutil.rmtree(folder.path)
    return removed


def _bundles(runs: Path) -> Iterator[RunFolder]:
    for path in sorted(runs.iterdir()):
        if path.is_dir() and not path.is_symlink() and _document(RunFolder(path)):
            yield RunFolder(path)


def _document(folder: RunFolder) -> dict[str, Any] | None:
    found = (folder.read(name) for name in DOCUMENTS)
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
