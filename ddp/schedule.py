"""Schedule: an all-reduce as data, checked stage by stage as it is drawn.

Owns the rules a schedule must keep. Does not send (executor), add (replay) or price (cost).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import eq
from typing import NamedTuple

from ddp.errors import ScheduleError


class Transfer(NamedTuple):
    """`src` sends chunk `chunk` to `dst`, which overwrites its own or, if `reduce`, adds to it.

    One transfer is both the send and the receive, so an unmatched send cannot be written.
    `reduce` means destination := destination + incoming.
    """

    src: int
    dst: int
    chunk: int
    reduce: bool


Stage = tuple[Transfer, ...]
MOST_STAGES = 100_000
"""Far more than any all-reduce has; what never ends is found out by it."""


@dataclass(frozen=True)
class Schedule:
    """Stages for `num_ranks` ranks over a buffer cut into `num_chunks` chunks.

    Within a stage every source is read before any destination is written; what several transfers
    add to one chunk is added in the order listed. Iterating draws the stages lazily and raises
    ScheduleError, naming stage, transfer and rule, at the first fault.
    """

    num_ranks: int
    num_chunks: int
    name: str
    stages: Callable[[], Iterable[Stage]]

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.num_chunks < 1:
            raise ScheduleError(
                f"{self.name}: {self.num_ranks} ranks, {self.num_chunks} chunks; "
                "a schedule needs at least one of each"
            )

    def __iter__(self) -> Iterator[Stage]:
        for index, stage in enumerate(self.stages()):
            if index == MOST_STAGES:
                raise ScheduleError(f"{self.name}: more than {MOST_STAGES:,} stages; does it end?")
            self._check(index, stage)
            yield stage

    def _check(self, index: int, stage: Stage) -> None:
        if stage and self._is_sound(stage):
            return
        written: dict[tuple[int, int], bool] = {}
        if not stage:
            raise ScheduleError(f"{self.name}: stage {index} is empty; leave it out")
        for transfer in stage:
            rule = self._broken_rule(transfer, written)
            if rule:
                raise ScheduleError(f"{self.name}: stage {index}, {transfer}: {rule}")
            written[transfer.dst, transfer.chunk] = transfer.reduce

    def _is_sound(self, stage: Stage) -> bool:
        """Every rule at once: many times faster than one by one, which names the fault."""
        sources, destinations, chunks, reduces = zip(*stage, strict=True)
        written: Collection[object] = set(destinations)
        if len(written) < len(stage):  # a rank that is written once has no chunk twice
            written = set(zip(destinations, chunks, strict=True))
        return (
            (len(written) == len(stage) or all(reduces))
            and _within(sources, self.num_ranks)
            and _within(destinations, self.num_ranks)
            and _within(chunks, self.num_chunks)
            and not any(map(eq, sources, destinations))
        )

    def _broken_rule(self, transfer: Transfer, written: dict[tuple[int, int], bool]) -> str | None:
        """`written`: what the transfers before it write, and whether they add to it."""
        if not (0 <= transfer.src < self.num_ranks and 0 <= transfer.dst < self.num_ranks):
            return f"ranks go from 0 to {self.num_ranks - 1}"
        if not 0 <= transfer.chunk < self.num_chunks:
            return f"chunks go from 0 to {self.num_chunks - 1}"
        if transfer.src == transfer.dst:
            return "a rank does not send to itself"
        adds = written.get((transfer.dst, transfer.chunk))
        if adds is not None and not (adds and transfer.reduce):
            return "a stage overwrites a (rank, chunk) once, or adds to it as often as it likes"
        return None


def _within(numbers: Collection[int], limit: int) -> bool:
    return min(numbers) >= 0 and max(numbers) < limit


def chunk_bounds(numel: int, num_chunks: int, chunk: int) -> tuple[int, int]:
    """Start and end, in elements, of a chunk; sizes differ by at most one, the first are longer.

    The same cut serves buckets into segments and segments into chunks.
    """
    size, longer = divmod(numel, num_chunks)
    start = chunk * size + min(chunk, longer)
    return start, start + size + (1 if chunk < longer else 0)
