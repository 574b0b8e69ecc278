"""The end of a run whose ranks somebody else started. Needs no torch."""

from typing import Any

from cluster.spec import ClusterSpec
from jobs.conclude import RunResult, conclude
from jobs.errors import JobError
from jobs.launch import AGREED
from jobs.runfolder import RunFolder
from jobs.runinfo import measured_by_ranks
from jobs.summary import read_ranks


def complete(folder: RunFolder, run: dict[str, Any], error: JobError | None) -> RunResult:
    """What the launcher of a run does at its end: run.json is completed, and all is summed up."""
    header = read_ranks(folder.path, run["world_size"])[0].header or {}
    spec = ClusterSpec.from_dict(run["lab"]["cluster"])
    run |= {key: header.get(key) for key in AGREED}
    run["probe"] = run["probe"] or measured_by_ranks(header, spec)
    folder.write("run.json", run)
    return conclude(folder, run, error)
