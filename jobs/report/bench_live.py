"""A bench while it goes: a line for the start, and on a terminal what is going on now below it."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live

from jobs.bench.asked import BenchSpec
from jobs.bench.sizes import size_words
from jobs.progress import PhaseProgress
from jobs.report.terminal import show
from jobs.report.text import Lines, count, labelled, line, seconds

BAR_CELLS = 20


class LiveBench:
    """An Observer of `bench.launcher`; `header` comes first."""

    def __init__(self, console: Console, bench: BenchSpec, num_ranks: int, header: Lines) -> None:
        self._console, self._bench, self._num_ranks = console, bench, num_ranks
        self._since_s = self._began_s = time.monotonic()
        self._live: Live | None = None
        self._num_done = 0
        show(console, header)
        if console.is_terminal:
            self._live = Live("", console=console, auto_refresh=False, transient=True)
            self._live.start()

    def told(self, document: Mapping[str, Any]) -> None:
        links = "links measured before" if document["links"] else "links not measured"
        self._line("start", count(self._num_ranks, "rank"), f"{links}; predictions are made")
        self._began_s = time.monotonic()

    def progress(self, phase: PhaseProgress) -> None:
        if phase.phase != "turn":
            return
        self._num_done = phase.done
        self._draw(f"round {self._round} of {self._rounds}, {self._size}")
        if phase.finished:
            self._line("measure", count(self._rounds, "round"), self._words())

    def tick(self, now_s: float) -> None:
        """The clock runs until the ranks have started; then their turns show that time passes."""
        if not self._num_done:
            self._draw(f"importing torch, meeting: {seconds(now_s - self._since_s)}")

    def end(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None
        show(self._console, [line()])

    @property
    def _rounds(self) -> int:
        return self._bench.rounds + self._bench.warmup_rounds

    @property
    def _of_round(self) -> int:
        """Turns in a round."""
        return len(self._bench.sizes_bytes) * len(self._bench.contenders)

    @property
    def _round(self) -> int:
        return min(self._rounds, self._num_done // self._of_round + 1)

    @property
    def _size(self) -> str:
        turn = self._num_done % self._of_round
        return size_words(self._bench.sizes_bytes[turn // len(self._bench.contenders)])

    def _words(self) -> str:
        turns = self._of_round
        return f"{count(turns, 'turn')} each, {self._bench.warmup_rounds} of warm-up"

    def _line(self, label: str, what: str, words: str) -> None:
        now_s = time.monotonic()
        head = f"{label.ljust(8)} {what.rjust(9)} {seconds(now_s - self._since_s):>8}"
        self._since_s = now_s
        show(self._console, labelled(head, words, self._console.width, label_width=len(head) + 3))

    def _draw(self, words: str) -> None:
        if self._live:
            filled = BAR_CELLS * self._num_done // self._bench.num_turns
            bar = f"[{'#' * filled}{'-' * (BAR_CELLS - filled)}]"
            self._live.update(line(f"  {bar}   {words}{self._left()}"), refresh=True)

    def _left(self) -> str:
        if not self._num_done:
            return ""
        pace_s = (time.monotonic() - self._began_s) / self._num_done
        return f"   {pace_s * (self._bench.num_turns - self._num_done):.0f} s left"
