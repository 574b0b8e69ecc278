"""The sizes of `scale` while they go: one line for each that is done, and what is going on now."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.status import Status

from cluster.lab import LabEvent
from cluster.linklog import LinkChange
from jobs.progress import PhaseProgress
from jobs.records import RankRecords
from jobs.report.lab_screens import STEPS
from jobs.report.live import LABELS
from jobs.report.scale_table import CROWDED
from jobs.report.terminal import show
from jobs.report.text import Lines, count, labelled, milliseconds, percent, seconds
from jobs.runfolder import RunFolder
from jobs.scale.plan import Size
from jobs.scale.rows import ScaleRow


class LiveScale:
    """A ScaleObserver that draws on `console`; `num_sizes` are to come."""

    def __init__(self, console: Console, num_sizes: int) -> None:
        self._console = console
        self._num_sizes = num_sizes
        self._num_begun = 0
        self._size: Size | None = None
        self._began_s = 0.0
        self._up_s: float | None = None
        self._jobs: list[str] = []
        self._status: Status | None = None

    def size(self, size: Size) -> None:
        self._size = size
        self._num_begun += 1
        self._jobs = []
        self._began_s = time.monotonic()
        self._up_s = None
        if self._console.is_terminal:
            self._status = self._console.status("", spinner="line")
            self._status.start()

    def lab(self, event: LabEvent) -> None:
        self._up_s = time.monotonic() - self._began_s
        self._say(f"lab, {event.step}: {STEPS.get(event.step, '')}")

    def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
        del folder
        self._jobs.append(run["job"]["name"])
        self._say("start: importing torch, meeting")

    def progress(self, phase: PhaseProgress, ranks: Sequence[RankRecords]) -> None:
        del ranks
        if phase.phase in LABELS:
            done = f"{LABELS[phase.phase]} {phase.done}/{phase.total}"
            self._say(f"{self._jobs[phase.job]}, {done}")

    def tick(self, now_s: float) -> None:
        """The spinner moves by itself."""

    def links_changed(self, change: LinkChange) -> None:
        """Nothing is shown: a size whose links were changed ends as a failure."""

    def end(self) -> None:
        self._say("ending the lab")

    def size_done(self, size: Size, rows: Sequence[ScaleRow]) -> None:
        self.stop()
        took_s = time.monotonic() - self._began_s
        show(self._console, size_line(size, self._up_s, took_s, rows, self._console.width))

    def stop(self) -> None:
        """Nothing is drawn any more, however it ended."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, words: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._size} ({self._num_begun} of {self._num_sizes})  {words}")


def size_line(
    size: Size, up_s: float | None, took_s: float, rows: Sequence[ScaleRow], width: int
) -> Lines:
    """`  4x2    8 ranks   lab 7.3 s   all 44.0 s   ring 274 ms 66 %, hier 215 ms 84 %`.

    `up_s`: how long its lab took to make; None where none was.
    """
    crowded = CROWDED if any(row.crowded for row in rows) else ""
    lab = "" if up_s is None else f"lab {seconds(up_s).rjust(6)}   "
    head = (
        f"{f'{size}{crowded}'.ljust(7)} {count(size.num_ranks, 'rank').rjust(9)}   "
        f"{lab}all {seconds(took_s).rjust(7)}"
    )
    return labelled(head, ", ".join(_job_words(row) for row in rows), width, len(head) + 3)


def _job_words(row: ScaleRow) -> str:
    efficiency = "" if row.efficiency is None else f" {percent(row.efficiency)}"
    return f"{row.job} {milliseconds(row.figures.step_s)}{efficiency}"
