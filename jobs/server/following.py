"""Follows one run that goes on, or the last one: its ranks' records become totals and figures.

Every record is read once and then forgotten; what stays of a step are its figures over all ranks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.clockshift import Shift
from jobs.derive import StepFigures, communication, figures_of_step
from jobs.errors import RecordsError
from jobs.figures import figures_of_steps
from jobs.records import StepRecord, records_path
from jobs.server.files import RankFile
from jobs.server.totals import RankTotals, RunTotals
from jobs.summary import summarize_figures
from jobs.wrapperwords import is_stock


class Follower:
    """One run: `poll` takes what its ranks have written since the last call."""

    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        """`run` is run.json. Raises RecordsError where it does not say which rank is where."""
        self.node_of = _node_of(run)
        names = [node["name"] for node in run["lab"]["nodes"]]
        ranks = [RankTotals(rank, str(names[node])) for rank, node in enumerate(self.node_of)]
        if is_stock(run["job"]):
            for rank in ranks:
                rank.comm_s = dict.fromkeys(rank.comm_s)
        self.totals = RunTotals(ranks)
        self._files = [RankFile(records_path(folder, rank)) for rank in range(len(self.node_of))]
        self._pending: dict[int, dict[int, StepRecord]] = {}
        self._steps: list[StepFigures] = []
        self._summary: dict[str, Any] = {}
        self._summary_of: tuple[object, ...] = ()

    def poll(self) -> None:
        """Raises RecordsError for a line that is no record."""
        for rank, file in enumerate(self._files):
            for record in file.new_steps():
                self._take(rank, record, file.records.header)

    def ended(self, rank: int) -> bool:
        """Whether the rank came to its end, and was not killed or stopped before."""
        return self._files[rank].records.end is not None

    def summary(
        self, run: Mapping[str, Any], prediction: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """summary.json as it would be if the run ended now."""
        ranks = [file.records for file in self._files]
        baseline = sum(len(records.baseline) for records in ranks)
        ends = sum(records.end is not None for records in ranks)
        made_of = (len(self._steps), baseline, ends, run, prediction)
        if self._summary_of != made_of:
            figures = figures_of_steps(tuple(self._steps), ranks, self.node_of)
            self._summary = summarize_figures(run, figures, ranks, prediction, None)
            self._summary_of = made_of
        return self._summary

    def _take(self, rank: int, record: StepRecord, header: Mapping[str, Any] | None) -> None:
        anchor = header["wall_ns"] - header["monotonic_ns"] if header else None
        self.totals.ranks[rank].note_last(record, anchor)
        step = self._pending.setdefault(record.step, {})
        shift = Shift.of(header, None)  # how clocks drift is known at the end only
        step[rank] = shift.record(record) if shift else record
        if len(step) == len(self.node_of):
            del self._pending[record.step]
            self._count([step[each] for each in range(len(self.node_of))])

    def _count(self, records: Sequence[StepRecord]) -> None:
        ranks = communication(records)
        figures = figures_of_step(records, ranks, self.node_of)
        self.totals.add(figures, records, ranks)
        self._steps.append(figures)


def _node_of(run: Mapping[str, Any]) -> list[int]:
    node_of: list[int] = run["node_of"]
    num_nodes = len(run["lab"]["nodes"])
    fits = isinstance(node_of, list) and node_of and len(node_of) == run["world_size"]
    if not fits or not all(type(node) is int and 0 <= node < num_nodes for node in node_of):
        raise RecordsError(
            f"run.json: node_of is {str(node_of)[:60]}",
            rule="it names the node of every rank",
            fix="run the job again",
        )
    return node_of
