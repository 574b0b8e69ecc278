"""A rank's program: its projection of a schedule, and the static order in which its items start.

Owns what one rank does in each stage, and when. Pure data: the executor carries it out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddp.schedule import Schedule, Stage

IN_FLIGHT = 8  # segments; more hold more scratch memory and hide nothing that these do not


@dataclass(frozen=True, slots=True)
class Message:
    """Transfers of one stage between two ranks whose chunks lie side by side: first to last."""

    src: int
    dst: int
    first: int
    last: int
    reduce: bool

    @property
    def chunks(self) -> range:
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class Action:
    """One rank's part in one stage.

    Of the receives, those in `direct` may land in the buffer itself, one stage ahead; of those in
    `crossing` the chunk is sent in the same stage.
    """

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    direct: frozenset[Message]
    crossing: frozenset[Message]


def project(schedule: Schedule, rank: int) -> tuple[Action, ...]:
    """What `rank` does in each stage, in the order listed."""
    program: list[Action] = []
    touched_before: frozenset[int] = frozenset()
    for stage in schedule:
        messages = merge(tuple(t for t in stage if rank in (t.src, t.dst)))
        sends = tuple(message for message in messages if message.src == rank)
        receives = tuple(message for message in messages if message.dst == rank)
        sent, received = _chunks(sends), _chunks(receives)
        busy = touched_before | sent
        direct = {m for m in receives if not m.reduce and busy.isdisjoint(m.chunks)}
        crossing = {m for m in receives if not sent.isdisjoint(m.chunks)}
        program.append(Action(sends, receives, frozenset(direct), frozenset(crossing)))
        touched_before = sent | received
    return tuple(program)


def merge(stage: Stage) -> list[Message]:
    """One message for each run of neighbouring chunks; both of its ends find the same runs."""
    runs: dict[tuple[int, int], list[Message]] = {}
    for t in stage:
        run = runs.setdefault((t.src, t.dst), [])
        if run and run[-1].last + 1 == t.chunk and run[-1].reduce == t.reduce:
            run[-1] = replace(run[-1], last=t.chunk)
        else:
            run.append(Message(t.src, t.dst, t.chunk, t.chunk, t.reduce))
    return [message for run in runs.values() for message in run]


def _chunks(messages: tuple[Message, ...]) -> frozenset[int]:
    return frozenset(chunk for message in messages for chunk in message.chunks)


def wavefront(num_stages: int, segments: int) -> Iterator[tuple[int, int]]:
    """(stage, segment) in the order of starting; stage `num_stages` only ends the one before.

    A segment enters a tick after the one before it, but not before the one IN_FLIGHT places
    earlier has ended.
    """
    offsets: list[int] = []
    for segment in range(segments):
        after = offsets[segment - IN_FLIGHT] + num_stages if segment >= IN_FLIGHT else 0
        offsets.append(max(offsets[-1] + 1, after) if offsets else 0)
    first = 0  # segments before it have ended
    for tick in range(offsets[-1] + num_stages + 1):
        while offsets[first] + num_stages < tick:
            first += 1
        for segment in range(first, segments):
            if offsets[segment] > tick:
                break
            yield tick - offsets[segment], segment
