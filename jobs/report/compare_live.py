"""Jobs that take turns, while they go: a line for the start, one before the rounds and one a round.

An Observer of `rounds.launcher`; on a terminal what is going on now is drawn below, with the time
left.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.live import Live

from cluster.linklog import LinkChange
from jobs.modelwords import micro_step_ms, model_words
from jobs.progress import PhaseProgress
from jobs.records import RankRecords
from jobs.report.link_screens import change_line
from jobs.report.live import LABELS
from jobs.report.run_header import START_S, conditions, start_words, unusual_steps
from jobs.report.terminal import show
from jobs.report.text import Lines, count, labelled, line, milliseconds, paragraph, seconds
from jobs.rounds.order import baseline_blocks
from jobs.runfolder import RunFolder

COUNTED = ("warm_up", "no_network", "train")
BAR_CELLS = 20


class LiveTurns:
    """Draws on `console`; `labels` name the jobs in their order. `alike`: all train the same."""

    def __init__(self, console: Console, labels: Sequence[str], where: str, *, alike: bool) -> None:
        self._console = console
        self._labels = labels
        self._where = where
        self._alike = alike
        self._runs: list[Mapping[str, Any]] = []
        self._live: Live | None = None
        self._began_s = self._since_s = 0.0
        self._num_started = self._num_done = self._rounds_done = 0
        self._train_done = [0] * len(labels)
        self._no_network_s: list[float] = []
        self._train_s: list[list[float]] = [[] for _ in labels]

    def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
        del folder
        self._runs.append(run)
        if len(self._runs) < len(self._labels):
            return
        show(self._console, turns_header(self._runs, self._where, self._alike, self._width))
        self._since_s = time.monotonic()
        if self._console.is_terminal:
            self._live = Live("", console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self.tick(self._since_s)

    def progress(self, phase: PhaseProgress, ranks: Sequence[RankRecords]) -> None:
        if phase.phase == "start":
            self._started(ranks)
        if phase.phase not in COUNTED:
            return
        self._num_done += 1
        if phase.phase == "warm_up" and phase.done == self._warmup_steps(phase.job) + 1:
            self._before_rounds()
        if phase.phase == "no_network":
            self._no_network_s.append(phase.step_s or 0.0)
        if phase.phase == "train":
            self._train_done[phase.job] = phase.done
            self._train_s[phase.job].append(phase.step_s or 0.0)
            self._round_may_be_over()
        self._draw(f"{self._labels[phase.job]}: {LABELS[phase.phase]} {phase.done}/{phase.total}")

    def tick(self, now_s: float) -> None:
        """The clock runs until the ranks have started; then their steps show that time passes."""
        if not self._num_done:
            self._draw(f"importing torch, meeting: {seconds(now_s - self._since_s)}")

    def links_changed(self, change: LinkChange) -> None:
        show(self._console, change_line(change, max(self._train_done), self._width))

    def end(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    @property
    def _width(self) -> int:
        return self._console.width

    @property
    def _turns(self) -> Mapping[str, Any]:
        turns: Mapping[str, Any] = self._runs[0]["turns"]
        return turns

    def _warmup_steps(self, job: int) -> int:
        return int(self._runs[job]["job"]["train"]["warmup_steps"])

    def _started(self, ranks: Sequence[RankRecords]) -> None:
        self._num_started += 1
        if self._num_started < len(self._labels):
            return
        headers = [rank.header or {} for rank in ranks]
        sums = [header.get("initial_params_sha256") for header in headers]
        words = start_words(headers[0], sums) if headers and headers[0] else ""
        self._line("start", count(len(ranks), "rank"), words)
        self._began_s = self._since_s

    def _before_rounds(self) -> None:
        if self._no_network_s and not any(self._train_done):
            mean = milliseconds(fmean(self._no_network_s))
            words = f"{mean} a step: the same computing, nothing sent"
            self._line("no network", count(len(self._no_network_s), "step"), words)
            self._no_network_s.clear()

    def _round_may_be_over(self) -> None:
        turn_steps = self._turns["steps_per_turn"]
        if min(self._train_done) < (self._rounds_done + 1) * turn_steps:
            return
        self._rounds_done += 1
        means = [
            f"{label} {milliseconds(fmean(train_s[-turn_steps:]))}"
            for label, train_s in zip(self._labels, self._train_s, strict=True)
        ]
        label = f"round {self._rounds_done}/{self._turns['rounds']}"
        self._line(label, count(turn_steps * len(self._labels), "step"), ", ".join(means))

    def _line(self, label: str, what: str, words: str) -> None:
        now_s = time.monotonic()
        head = f"{label.ljust(11)} {what.rjust(10)} {seconds(now_s - self._since_s):>8}"
        self._since_s = now_s
        show(self._console, labelled(head, words, self._width, label_width=len(head) + 3))

    def _draw(self, words: str) -> None:
        if self._live:
            total = sum(_num_steps(run) for run in self._runs)
            filled = BAR_CELLS * self._num_done // total
            bar = f"[{'#' * filled}{'-' * (BAR_CELLS - filled)}]"
            self._live.update(line(f"  {bar}   {words}{self._left(total)}"), refresh=True)

    def _left(self, total: int) -> str:
        if not (self._began_s and self._num_done):
            return ""
        pace_s = (time.monotonic() - self._began_s) / self._num_done
        return f"   {pace_s * max(0, total - self._num_done):.0f} s left"


def turns_header(runs: Sequence[Mapping[str, Any]], where: str, alike: bool, width: int) -> Lines:
    """What is compared, where, in what order, and for how long."""
    job, turns = runs[0]["job"], runs[0]["turns"]
    batch = job["data"]["batch_size"] * job["train"]["accumulate"]
    same = "Same model, data, seed and batch: " if alike else "The first job: "
    text = (
        f"{same}{model_words(job['model'])}; batch {batch} per rank, "
        f"{batch * runs[0]['world_size']} in all"
    )
    lines = paragraph(text, width)
    sentences = [each for run in runs for each in conditions(run)]
    sentences += [
        f"{run['job']['name']}: {words}" for run in runs for words in unusual_steps(run["job"])
    ]
    for sentence in dict.fromkeys(sentences):
        lines += paragraph(sentence, width)
    lines += paragraph(f"{where}.", width)
    rounds = (
        f"{count(turns['rounds'], 'round')}; in each the jobs take turns, "
        f"{count(turns['steps_per_turn'], 'counted step')} a turn.{_about(runs)}"
    )
    return [*lines, *paragraph(rounds, width), line()]


def _about(runs: Sequence[Mapping[str, Any]]) -> str:
    """An estimate where computing is paced; what the network adds is what will be found out."""
    total_s = START_S
    for run in runs:
        paced_ms = micro_step_ms(run["job"])
        if paced_ms is None:
            return ""
        total_s += _num_steps(run) * run["job"]["train"]["accumulate"] * paced_ms / 1e3
    return f" About {-(-total_s // 5) * 5:.0f} s, and what the network adds."


def _num_steps(run: Mapping[str, Any]) -> int:
    train, turns = run["job"]["train"], run["turns"]
    without = sum(baseline_blocks(run["job"]["baseline_steps"], turns["rounds"]))
    return int(train["steps"] + train["warmup_steps"] + turns["rounds"] + without)
