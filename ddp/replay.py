"""Runs a schedule in memory, all ranks in one process: the proof that it is an all-reduce.

Owns what a schedule means. Imports no algorithm, executor or cost model, so that each is checked
against something that it did not make.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ddp.errors import ScheduleError, UsageError
from ddp.schedule import Schedule, chunk_bounds

Cell = TypeVar("Cell")


def replay(schedule: Schedule, buffers: Sequence[Tensor], segments: int = 1) -> list[Tensor]:
    """What every rank holds after `schedule`, given `buffers[rank]`, 1-D and alike.

    Sums in the order and dtype in which the ranks themselves sum, so the bytes are theirs.
    The buffers given are left as they are. Raises ScheduleError or UsageError.
    """
    _check_alike(schedule, buffers, segments)
    results: list[list[Tensor]] = [[] for _ in buffers]
    for segment in range(segments):
        cells = [_cut(_part(buffer, segments, segment), schedule) for buffer in buffers]
        _run(schedule, cells, torch.add)
        for result, chunks in zip(results, cells, strict=True):
            result.extend(chunks)
    return [torch.cat(chunks) for chunks in results]


def prove(schedule: Schedule) -> None:
    """Raises ScheduleError unless every rank ends with every rank's part of every chunk, once.

    Symbolic: a cell holds the multiset of ranks that have been added into it, so a part that is
    missing on one rank, or counted twice, is found whatever the data would be.
    """
    ranks = range(schedule.num_ranks)
    cells = [[Counter([rank])] * schedule.num_chunks for rank in ranks]
    _run(schedule, cells, lambda own, incoming: own + incoming)
    for rank in ranks:
        for chunk, held in enumerate(cells[rank]):
            wrong = {part: held[part] for part in ranks if held[part] != 1}
            if wrong:
                counts = ", ".join(f"rank {part} {count} times" for part, count in wrong.items())
                raise ScheduleError(
                    f"{schedule.name}: rank {rank} ends with chunk {chunk} holding {counts}; "
                    "each rank must be in it exactly once"
                )


def _run(schedule: Schedule, cells: list[list[Cell]], add: Callable[[Cell, Cell], Cell]) -> None:
    """Run on `cells[rank][chunk]`. `add` makes a new cell, so cells may be shared."""
    for stage in schedule:
        incoming = [cells[transfer.src][transfer.chunk] for transfer in stage]
        for transfer, value in zip(stage, incoming, strict=True):
            own = cells[transfer.dst]
            chunk = transfer.chunk
            own[chunk] = add(own[chunk], value) if transfer.reduce else value


def _part(buffer: Tensor, parts: int, index: int) -> Tensor:
    start, end = chunk_bounds(buffer.numel(), parts, index)
    return buffer[start:end]


def _cut(segment: Tensor, schedule: Schedule) -> list[Tensor]:
    return [_part(segment, schedule.num_chunks, chunk) for chunk in range(schedule.num_chunks)]


def _check_alike(schedule: Schedule, buffers: Sequence[Tensor], segments: int) -> None:
    if len(buffers) != schedule.num_ranks:
        raise UsageError(f"{len(buffers)} buffers for the {schedule.num_ranks} ranks of a schedule")
    if segments < 1:
        raise UsageError(f"{segments} segments: at least one")
    kinds = {(tuple(buffer.shape), buffer.dtype) for buffer in buffers}
    if len(kinds) != 1 or buffers[0].dim() != 1:
        raise UsageError(f"buffers of {sorted(map(str, kinds))}: all must be 1-D and alike")
