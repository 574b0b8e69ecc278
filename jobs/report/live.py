"""A run while it goes: one line per phase, redrawn on a terminal, written once elsewhere."""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cluster.linklog import LinkChange
from jobs.progress import PhaseProgress
from jobs.records import RankRecords
from jobs.report.link_screens import change_line
from jobs.report.run_header import run_header, start_words
from jobs.report.terminal import show
from jobs.report.text import Lines, count, labelled, layout, line, milliseconds, seconds
from jobs.runfolder import RunFolder

LABELS = {
    "start": "start",
    "warm_up": "warm-up",
    "no_network": "no network",
    "train": "train",
}
BAR_WIDTH = {80: 14, 100: 30, 120: 40}


def phase_line(progress: PhaseProgress, words: str, num_ranks: int, width: int) -> Lines:
    """`  train        30 steps     8.6 s   words`; done/total while the phase is not over."""
    if progress.phase == "start":
        what = count(num_ranks, "rank")
    elif progress.finished:
        what = count(progress.total, "step")
    else:
        what = f"{progress.done}/{progress.total} steps"
    head = f"{LABELS[progress.phase].ljust(10)} {what.rjust(11)} {seconds(progress.elapsed_s):>8}"
    return labelled(head, words, width, label_width=len(head) + 3)


def train_words(progress: PhaseProgress, width: int) -> str:
    """Bar, loss, and what is left."""
    cells = BAR_WIDTH[layout(width)]
    filled = cells * progress.done // progress.total
    words = f"[{'#' * filled}{'-' * (cells - filled)}]"
    if progress.first_loss is not None and progress.loss is not None:
        first = f"{progress.first_loss:.2f} -> " if progress.finished else ""
        words += f"   loss {first}{progress.loss:.2f}"
    return words + _left(progress)


def _left(progress: PhaseProgress) -> str:
    if progress.finished or progress.remaining_s is None:
        return ""
    return f"   {progress.remaining_s:.0f} s left"


class LiveRun:
    """An Observer that draws on `console`; `where` it runs, `algorithm_summary`: told first."""

    def __init__(self, console: Console, where: str, algorithm_summary: str) -> None:
        self._console = console
        self._where = where
        self._algorithm_summary = algorithm_summary
        self._live: Live | None = None
        self._began_s = 0.0
        self._num_ranks = 0
        self._train_done = 0
        self._lines: dict[str, Lines] = {}
        self._step_s: dict[str, list[float]] = {}

    def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
        del folder
        self._num_ranks = run["world_size"]
        header = run_header(run, self._where, self._algorithm_summary, self._console.width)
        show(self._console, header)
        if self._console.is_terminal:
            self._began_s = time.monotonic()
            waiting = self._waiting(self._began_s)
            self._live = Live(waiting, console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def progress(self, phase: PhaseProgress, ranks: Sequence[RankRecords]) -> None:
        if phase.phase not in LABELS:
            return
        if phase.phase == "train":
            self._train_done = phase.done
        if phase.step_s is not None:
            self._step_s.setdefault(phase.phase, []).append(phase.step_s)
        lines = phase_line(phase, self._words(phase, ranks), self._num_ranks, self._console.width)
        self._lines[phase.phase] = lines
        if self._live:
            drawn = [each for name in LABELS for each in self._lines.get(name, [])]
            self._live.update(Group(*drawn), refresh=True)
        elif phase.finished:
            show(self._console, lines)

    def tick(self, now_s: float) -> None:
        """The clock runs until the ranks have started; then their steps show that time passes."""
        if self._live and not self._lines:
            self._live.update(self._waiting(now_s), refresh=True)

    def links_changed(self, change: LinkChange) -> None:
        """Once it is done: what is new, above what is drawn."""
        if change.settled_ns is not None:
            show(self._console, change_line(change, self._train_done, self._console.width))

    def _waiting(self, now_s: float) -> Text:
        ranks, took = count(self._num_ranks, "rank"), seconds(now_s - self._began_s)
        return line(f"  {'start'.ljust(10)} {ranks:>11} {took:>8}   importing torch, meeting")

    def end(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _words(self, phase: PhaseProgress, ranks: Sequence[RankRecords]) -> str:
        if phase.phase == "start":
            headers = [rank.header or {} for rank in ranks]
            sums = [header.get("initial_params_sha256") for header in headers]
            return start_words(headers[0], sums) if headers and headers[0] else ""
        if phase.phase == "train":
            return train_words(phase, self._console.width)
        if phase.phase == "warm_up":
            return "not counted" + _left(phase)
        steps = self._step_s.get("no_network")
        mean = f"{milliseconds(fmean(steps))} a step: " if steps else ""
        return f"{mean}the same computing, nothing sent{_left(phase)}"
