"""One folder of runs/ as the exporter knows it, and the view of it that metrics and pages show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import RecordsError
from jobs.owncode import algorithm_name
from jobs.runfolder import LOCK, RunFolder
from jobs.server.files import Document, plain_file
from jobs.server.following import Follower
from jobs.server.links import LinkRates, link_rates
from jobs.server.notes import notes
from jobs.server.totals import RankTotals, RunTotals

RUNNING, KILLED = "running", "killed"


@dataclass(frozen=True)
class RunView:
    """One run. `state` is running, ok, failed or killed (its launcher ended without a word).

    `summary` has the keys of summary.json, also while the run goes on; None for an earlier run
    that was killed. `totals`, `ranks` and `links` are there for running runs and the last one.
    `ranks` are those that run or came to their end: a rank that was killed is none of them.
    """

    run_id: str
    job: str
    algorithm: str
    state: str
    created_at: str
    lab: str
    num_nodes: int
    num_ranks: int
    steps_asked: int
    notes: Sequence[str]
    summary: Mapping[str, Any] | None
    prediction: Mapping[str, Any] | None
    totals: RunTotals | None
    ranks: Sequence[RankTotals]
    links: Sequence[LinkRates]


class WatchedFolder:
    """What was read of one folder. Whatever is broken in it, its methods raise some Exception.

    Runs that took turns with one another have the same `group`; any other is alone in its own.
    """

    def __init__(self, path: Path, inode: int) -> None:
        self.path = path
        self.inode = inode
        self.running = False
        self.group = ""
        self._run: Mapping[str, Any] = {}
        self._follower: Follower | None = None
        self._fault: Exception | None = None
        names = ("run.json", "summary.json", "prediction.json")
        self._documents = {name: Document(path / name, leave_out="plan") for name in names}

    @property
    def age(self) -> tuple[str, str]:
        """Sorts runs from the oldest to the newest."""
        return str(self._run.get("created_at", "")), self.path.name

    def look(self) -> bool:
        """Whether this is a run: there is a run.json, and it names this folder."""
        run = self._documents["run.json"].poll()
        if run is None:
            return False
        if run.get("run_id") != self.path.name:
            raise RecordsError(
                f"run.json is of {run.get('run_id')!r}",
                rule="a run's folder has the name that its run.json says",
                fix="give the folder its name back",
            )
        if run.get("created_at") != self._run.get("created_at"):
            self.forget()  # another run took the place of one that was removed
        self._run = run
        turns = run.get("turns")
        self.group = f"turns {turns['group']}" if turns else f"run {self.path.name}"
        lock = plain_file(self.path / LOCK)
        self.running = lock is not None and RunFolder(self.path).is_running()
        return True

    def follow(self) -> None:
        """Reads what its ranks have written since the last call. Once broken, always broken."""
        if self._fault:
            raise self._fault
        try:
            self._follower = self._follower or Follower(self.path, self._run)
            self._follower.poll()
        except Exception as exc:
            self._fault = exc
            raise

    def forget(self) -> None:
        """Keeps no records: the run is no longer looked at closely."""
        self._follower = self._fault = None

    def view(self) -> RunView:
        summary = self._documents["summary.json"].poll()
        prediction = self._documents["prediction.json"].poll()
        follower, run = self._follower, self._run
        if follower and (self.running or summary is None):
            state = RUNNING if self.running else KILLED
            summary = {**follower.summary(run, prediction), "status": state}
        return RunView(
            run_id=self.path.name,
            job=str(run["job"]["name"]),
            algorithm=algorithm_name(run["job"]["ddp"]),
            state=str(summary["status"]) if summary else KILLED,
            created_at=str(run["created_at"]),
            lab=str(run["lab"]["name"]),
            num_nodes=int(run["nnodes"]),
            num_ranks=int(run["world_size"]),
            steps_asked=int(run["job"]["train"]["steps"]),
            notes=notes(run),
            summary=summary,
            prediction=prediction,
            totals=follower.totals if follower else None,
            ranks=self._ranks(follower) if follower else (),
            links=tuple(link_rates(run)) if follower else (),
        )

    def _ranks(self, follower: Follower) -> Sequence[RankTotals]:
        ranks = follower.totals.ranks
        return [each for each in ranks if self.running or follower.ended(each.rank)]
