"""A rank's program over one buffer, ready to be carried out again and again: which slice of the
buffer each message is, and in which order things are begun and ended. Sends nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ddp.program import Action, Message, wavefront
from ddp.schedule import chunk_bounds
from ddp.transport import Loan, Pending


@dataclass(frozen=True, slots=True)
class BoundSend:
    """`part` of the buffer goes to `peer`, a rank of this node or not. `first`: its chunk."""

    peer: int
    first: int
    part: Tensor
    num_bytes: int
    is_local: bool


@dataclass(frozen=True, slots=True)
class BoundReceive:
    """Something comes from `peer` for `part` of the buffer.

    `direct`: it may land there. `crossing`: the same part is sent in the same stage. `returning`:
    the sum goes back in the next stage, so that it may be written where this lies.
    """

    peer: int
    first: int
    part: Tensor
    reduce: bool
    direct: bool
    crossing: bool
    returning: bool

    def write(self, data: Tensor) -> None:
        if self.reduce:
            self.part.add_(data)
        else:
            self.part.copy_(data)


@dataclass(slots=True)
class Item:
    """A stage of one segment. `following`: the next stage of the same segment, if there is one.

    `coming` and `going`: what was posted for it and is still to be waited for. `handed_back`: those
    of its sends, by peer and first chunk, that were posted when the stage before it ended.
    """

    stage: int
    segment: int
    tag: int
    sends: tuple[BoundSend, ...]
    receives: tuple[BoundReceive, ...]
    following: "Item | None" = None
    coming: list[Pending | Loan] = field(default_factory=list)
    going: list[Pending] = field(default_factory=list)
    handed_back: dict[tuple[int, int], Pending] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """`order`: at each tick and segment, the item that ends and the item that starts."""

    order: tuple[tuple[Item | None, Item | None], ...]
    intra_node_bytes: int
    inter_node_bytes: int


def bind(
    program: Sequence[Action],
    num_chunks: int,
    is_local: Sequence[bool],
    buffer: Tensor,
    segments: int,
) -> Bound:
    """`buffer` (numel,) cut into segments, each of them into chunks; parts are views of it."""
    columns = [
        list(_items(program, num_chunks, is_local, buffer, segments, segment))
        for segment in range(segments)
    ]
    order = []
    for stage, segment in wavefront(len(program), segments):
        column = columns[segment]
        ended = column[stage - 1] if stage else None
        order.append((ended, column[stage] if stage < len(column) else None))
    sends = [send for column in columns for item in column for send in item.sends]
    inside = sum(send.num_bytes for send in sends if send.is_local)
    return Bound(tuple(order), inside, sum(send.num_bytes for send in sends) - inside)


def _items(
    program: Sequence[Action],
    num_chunks: int,
    is_local: Sequence[bool],
    buffer: Tensor,
    segments: int,
    segment: int,
) -> Iterator[Item]:
    start, end = chunk_bounds(buffer.numel(), segments, segment)

    def part(message: Message) -> Tensor:
        low, _ = chunk_bounds(end - start, num_chunks, message.first)
        _, high = chunk_bounds(end - start, num_chunks, message.last)
        return buffer[start + low : start + high]

    before: Item | None = None
    for stage, action in enumerate(program):
        sends = ((message, part(message)) for message in action.sends)
        receives = ((message, part(message)) for message in action.receives)
        item = Item(
            stage,
            segment,
            stage * segments + segment,
            tuple(
                BoundSend(message.dst, message.first, data, data.nbytes, is_local[message.dst])
                for message, data in sends
                if data.numel()
            ),
            tuple(
                BoundReceive(
                    message.src,
                    message.first,
                    data,
                    message.reduce,
                    message in action.direct,
                    message in action.crossing,
                    message in action.returning,
                )
                for message, data in receives
                if data.numel()
            ),
        )
        if before is not None:
            before.following = item
        before = item
        yield item
