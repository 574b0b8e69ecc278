"""The end of a run whose ranks somebody else started. Needs no torch."""

from typing import Any

from cluster.spec import ClusterSpec
from jobs.conclude import RunResult, conclude
from jobs.errors import JobError
from jobs.runfolder import RunFolder
from jobs.runinfo import told_by_ranks
from jobs.summary import read_ranks


def complete(folder: RunFolder, run: dict[str, Any], error: JobError | None) -> RunResult:
    """What the launcher of a run does at its end: run.json is completed, and all is summed up."""
    headers = [rank.header for rank in read_ranks(folder.path, run["world_size"])]
    run |= told_by_ranks(run, headers, ClusterSpec.from_dict(run["lab"]["cluster"]))
    folder.write("run.json", run)
    return conclude(folder, run, error)
