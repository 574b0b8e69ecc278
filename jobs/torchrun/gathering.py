"""`ddplab collect`: the files of one run, from folders of several machines, in one run folder.

Owns what makes them files of one run, and the refusal of ranks that are missing or there twice.
Nothing is changed in the folders they come from.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobs.conclude import RunResult
from jobs.errors import JobError, RecordsError, RunFailed
from jobs.predict import PREDICTION
from jobs.rankwords import ranks_words
from jobs.records import read_records, records_path
from jobs.runfolder import RunFolder, new_folder
from jobs.torchrun.completing import complete

RULE = "a run is whole with the files of all its ranks, each once, and of no other run"


@dataclass(frozen=True)
class Part:
    """What one machine has kept of a run."""

    folder: Path
    document: Mapping[str, Any]

    @property
    def token(self) -> str:
        return str(self.document["session"]["token"])

    @property
    def run(self) -> Mapping[str, Any]:
        run: Mapping[str, Any] = self.document["run"]
        return run


def collect(folders: Sequence[Path], out: Path) -> RunResult:
    """Makes the run folder `out`. Raises RecordsError, and leaves nothing, where it cannot be."""
    parts = [part for folder in folders for part in _parts(folder)]
    run = dict(_one_run(parts))
    files = _rank_files(folders, int(run["world_size"]))
    _require_one_plan(files, run)
    predictions = [folder / PREDICTION for folder in folders if (folder / PREDICTION).exists()]
    with new_folder(out) as folder:
        for rank, file in enumerate(files):
            _copy(file, records_path(folder.path, rank))
        for file in predictions[:1]:
            _copy(file, folder.path / PREDICTION)
        run |= {"run_id": out.absolute().name, "collected_from": [str(path) for path in folders]}
        result = complete(folder, run, _unfinished(files))
    return replace(result, folder=RunFolder(out))


def _parts(folder: Path) -> list[Part]:
    if not folder.is_dir():
        raise RecordsError(
            f"{folder}: {'not a folder' if folder.exists() else 'not there'}",
            rule="each machine's folder is the one that its ranks were given as --out",
            fix="copy it here first: scp -r HOST:DIR .",
        )
    found = []
    for path in sorted(folder.glob("part*.json")):
        try:
            found.append(Part(folder, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as exc:
            raise RecordsError(
                f"{path}: {exc}", rule="it was written by a rank of the run", fix="copy it again"
            ) from exc
    if not found:
        whole = (folder / "run.json").exists()
        raise RecordsError(
            f"{folder}: a whole run" if whole else f"{folder}: no part of a run",
            rule="a machine that shares no folder with the others keeps a part*.json",
            fix="leave it out; it needs no collecting" if whole else "name the folder of --out",
        )
    return found


def _one_run(parts: Sequence[Part]) -> Mapping[str, Any]:
    """run.json as rank 0's machine wrote it, where its folder is among them."""
    first = parts[0]
    for part in parts[1:]:
        if part.token != first.token:
            raise RecordsError(
                f"{part.folder} is of another run than {first.folder}",
                rule=RULE,
                fix="name the folders of one start of the job",
                seen=f"{_began(part)}; {_began(first)}",
            )
    return next((part for part in parts if 0 in part.document["ranks"]), first).run


def _began(part: Part) -> str:
    session = part.document["session"]
    return f"{part.folder} began {session['created_at']} as {session['run_id']}"


def _rank_files(folders: Sequence[Path], world_size: int) -> list[Path]:
    found: dict[int, Path] = {}
    for folder in folders:
        for rank in range(world_size):
            path = records_path(folder, rank)
            if not path.exists():
                continue
            if rank in found:
                raise RecordsError(
                    f"rank {rank} is in {found[rank].parent} and in {folder}",
                    rule=RULE,
                    fix="name each machine's folder once",
                )
            found[rank] = path
    missing = [rank for rank in range(world_size) if rank not in found]
    if missing:
        raise RecordsError(
            f"{ranks_words(missing)} of {world_size} missing",
            rule=RULE,
            fix="name the folders of all machines, also of those whose ranks failed",
        )
    return [found[rank] for rank in range(world_size)]


def _require_one_plan(files: Sequence[Path], run: Mapping[str, Any]) -> None:
    """A rank that ended before it had a plan says nothing of it."""
    plans: dict[str, int] = {}
    for rank, path in enumerate(files):
        header = read_records(path).header
        if header is None:
            continue
        if (header["rank"], header["world_size"]) != (rank, run["world_size"]):
            raise RecordsError(
                f"{path}: of rank {header['rank']} of {header['world_size']}",
                rule=f"the file of rank {rank} of {run['world_size']} has this name",
                fix="copy the folders again, and rename nothing in them",
            )
        if header.get("plan_sha256"):
            plans.setdefault(header["plan_sha256"], rank)
    if len(plans) > 1:
        (first, one), (second, other), *_ = plans.items()
        raise RecordsError(
            f"rank {other} has plan {second[:8]}, rank {one} has {first[:8]}",
            rule="all ranks of a run add in the order of one plan",
            fix="name the folders of one start of the job",
        )


def _unfinished(files: Sequence[Path]) -> JobError | None:
    short = [rank for rank, path in enumerate(files) if read_records(path).end is None]
    if not short:
        return None
    return RunFailed(
        f"{ranks_words(short)} did not come to an end",
        rule="every rank writes down that it has ended",
        fix="look at what torchrun said on that machine",
    )


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as exc:
        raise RecordsError(
            f"{exc.filename or source}: {exc.strerror}",
            rule="files of all machines are copied into one folder",
            fix="make room on this disk, or make the files readable",
        ) from exc
