"""A rank's program: its projection of a schedule, and the static order in which its items start.

Owns what one rank does in each stage, and when. Pure data: the executor carries it out.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise

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
    `crossing` the chunk is sent in the same stage. The sum of those in `returning` goes back where
    they came from in the next stage, and meanwhile nobody else touches the chunk there.
    """

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    direct: frozenset[Message]
    crossing: frozenset[Message]
    returning: frozenset[Message]


def project(schedule: Schedule, rank: int) -> tuple[Action, ...]:
    """What `rank` does in each stage, in the order listed."""
    program: list[Action] = []
    touched_before: frozenset[int] = frozenset()
    stages = chain(schedule, [()])
    for stage, following in pairwise(stages):
        sends, receives = _messages(stage, rank)
        sent, received = _chunks(sends), _chunks(receives)
        busy = touched_before | sent
        direct = {m for m in receives if not m.reduce and busy.isdisjoint(m.chunks)}
        crossing = {m for m in receives if not sent.isdisjoint(m.chunks)}
        returning = _returning(receives, crossing, stage, following)
        action = Action(sends, receives, frozenset(direct), frozenset(crossing), returning)
        program.append(action)
        touched_before = sent | received
    return tuple(program)


def _messages(stage: Stage, rank: int) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What `rank` sends, and what it receives."""
    receivers = {t.dst for t in stage if rank in (t.src, t.dst)}
    messages = merge(tuple(t for t in stage if t.dst in receivers))
    sends = tuple(message for message in messages if message.src == rank)
    return sends, tuple(message for message in messages if message.dst == rank)


def merge(stage: Stage) -> list[Message]:
    """One message for each run of neighbouring chunks; both of its ends find the same runs.

    What is added to a chunk stays in the order listed: a transfer joins no run that lies before
    another one to the same chunk. So all transfers to a rank must be there, or none.
    """
    runs: list[Message] = []
    last_of: dict[tuple[int, int], int] = {}
    written_by: dict[tuple[int, int], int] = {}
    for t in stage:
        at, before = last_of.get((t.src, t.dst), -1), written_by.get((t.dst, t.chunk), -1)
        if at > before and runs[at].last + 1 == t.chunk and runs[at].reduce == t.reduce:
            runs[at] = replace(runs[at], last=t.chunk)
        else:
            at = len(runs)
            runs.append(Message(t.src, t.dst, t.chunk, t.chunk, t.reduce))
        last_of[t.src, t.dst] = written_by[t.dst, t.chunk] = at
    return runs


def _returning(
    receives: tuple[Message, ...], crossing: set[Message], stage: Stage, following: Stage
) -> frozenset[Message]:
    """What else comes for the same chunks, if anything, is added in turn: it must return, too."""
    if not any(message.reduce for message in receives):
        return frozenset()
    back, _ = _messages(following, receives[0].dst)
    touched = Counter((end, t.chunk) for t in (*stage, *following) for end in (t.src, t.dst))

    def returns(m: Message) -> bool:
        is_sent_back = Message(m.dst, m.src, m.first, m.last, reduce=False) in back
        lent_and_returned = all(touched[m.src, chunk] == 2 for chunk in m.chunks)
        return m.reduce and m not in crossing and is_sent_back and lent_and_returned

    found = {m for m in receives if returns(m)}

    def fits(m: Message, other: Message) -> bool:
        apart = other.last < m.first or m.last < other.first
        return apart or (other in found and (other.first, other.last) == (m.first, m.last))

    return frozenset(m for m in found if all(fits(m, other) for other in receives))


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
