"""Runs a schedule between real ranks: the only module that sends.

Owns the order of sends, receives and additions on one rank, and the count of bytes it sends. Does
not decide what to send (schedule) nor how bytes travel (transport).

A rank's program is its projection of the schedule, in a static order: segments enter one after
another, and item (stage, segment) starts at tick stage + offset(segment), lower segments first
within a tick, the same on every rank. Before an item starts, the segment's stage before it has
ended: its receives have arrived, its sends are acknowledged, its additions are done. So nothing
is written while a peer may still read it. A sum that the next stage sends back is written into the
peer's own memory at once, where that is what was borrowed (returning); the peer is not past its
stage, and touches that chunk no sooner. A receive is posted one stage ahead, straight into its
chunk where that is idle until then; else the data is borrowed, from scratch memory or the peer's
own, and written at the end of the stage. Where a chunk is both sent and written in one stage, what
was borrowed is kept aside until the send is acknowledged.

Why it cannot deadlock, even where a send waits until its peer has read: posting never blocks, and
at an item's end a rank first waits for its receives, reads them, and only then waits for its sends.
Take the earliest end of an item that some rank never gets past. All ranks have got past every one
before it, so both ends of its messages are posted and the data comes; all ranks read it, so every
send of it is acknowledged. So they get past it.
"""

import weakref
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ddp.binding import Bound, BoundReceive, BoundSend, Item, bind
from ddp.errors import PeerTimeout, TransportError, UsageError
from ddp.fabric import Fabric
from ddp.program import project
from ddp.returning import Returning, add_up
from ddp.schedule import Schedule
from ddp.timing import Traffic
from ddp.transport import Loan, Transport
from ddp.transport.p2p import Work, translate


class Collective(Protocol):
    """Something that can sum a buffer over all ranks.

    `name` is what plans and results call it. One that is named `noop` exchanges nothing: its
    buckets are neither averaged nor compared between ranks.
    """

    name: str

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        """Sum `buffer` (1-D, contiguous) over all ranks, in place; return what this rank sent.

        Raises TransportError, whose message names bucket, stage and peer. `bucket` is its number.
        """


class NoCollective:
    """Communicates nothing: the ceiling. Buffers keep what this rank put in."""

    name = "noop"

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:  # noqa: ARG002
        return Traffic(0, 0)


class AllReduces(Protocol):
    """The part of a torch process group that NativeCollective needs."""

    def allreduce(self, tensors: list[Tensor], op: object, timeout: timedelta, /) -> Work: ...


class NativeCollective:
    """The backend's own all_reduce. What it sends is not known."""

    name = "native"

    def __init__(self, group: AllReduces, timeout_s: float) -> None:
        self._group = group
        self._timeout = timedelta(seconds=timeout_s)

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:  # noqa: ARG002
        _require_a_row(buffer, bucket)
        if buffer.numel():
            real = torch.view_as_real(buffer) if buffer.is_complex() else buffer
            try:
                self._group.allreduce([real], dist.ReduceOp.SUM, self._timeout).wait()
            except RuntimeError as exc:
                problem = translate(exc)
                raise type(problem)(
                    f"bucket {bucket}, the backend's all_reduce: {problem}"
                ) from exc
        return Traffic(None, None)


class ScheduledCollective:
    """Carries out one rank's part of a schedule. One all_reduce at a time."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        fabric: Fabric,
        transport: Transport,
        timeout_s: float,
    ) -> None:
        self.name = schedule.name
        self._transport = transport
        self._timeout_s = timeout_s
        self._num_chunks = schedule.num_chunks
        self._program = project(schedule, rank)
        self._is_local = tuple(fabric.same_node(rank, peer) for peer in range(fabric.num_ranks))
        self._bound: dict[tuple[int, int], tuple[weakref.ref[Tensor], _Place, Bound]] = {}

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        bound = self._bind(buffer, segments, bucket)
        try:
            for ended, started in bound.order:
                if ended is not None:
                    self._end(ended)
                if started is not None:
                    self._start(started)
        except TransportError as exc:
            self._bound.clear()  # what was posted will never be waited for
            problem = type(exc)(f"bucket {bucket}, {exc}")
            if isinstance(problem, PeerTimeout) and isinstance(exc, PeerTimeout):
                problem.stage = exc.stage
            raise problem from exc
        return Traffic(bound.intra_node_bytes, bound.inter_node_bytes)

    def _start(self, item: Item) -> None:
        if item.stage == 0:
            self._post_receives(item)
        send = None
        try:
            for send in item.sends:
                going = item.handed_back.pop((send.peer, send.first), None)
                item.going.append(going or self._transport.send(send.part, send.peer, item.tag))
        except TransportError as exc:
            raise self._named(exc, item, send, "took") from exc
        if item.following is not None:
            self._post_receives(item.following)

    def _post_receives(self, item: Item) -> None:
        receive = None
        try:
            for receive in item.receives:
                post = self._transport.recv if receive.direct else self._transport.borrow
                item.coming.append(post(receive.part, receive.peer, item.tag))
        except TransportError as exc:
            raise self._named(exc, item, receive, "sent") from exc

    def _end(self, item: Item) -> None:
        """Wait for the item's messages, and write what was borrowed."""
        aside: list[tuple[BoundReceive, Tensor]] = []
        returning: dict[int, list[Returning]] = {}
        message: BoundReceive | BoundSend | None = None
        verb = "sent"
        try:
            for message, coming in zip(item.receives, item.coming, strict=True):
                data = coming.wait(self._timeout_s)
                if data is None:
                    continue  # it has landed
                loan = cast("Loan", coming)
                if message.returning:
                    returning.setdefault(message.first, []).append(Returning(message, data, loan))
                    continue
                if message.crossing:  # not to be written before it is known to be sent
                    aside.append((message, data.clone()))
                else:
                    message.write(data)
                loan.end()
            verb = "took"
            for summands in returning.values():
                total, following = add_up(summands), cast("Item", item.following)
                for message, _, loan in summands:
                    sent = loan.hand_back(total, following.tag)
                    following.handed_back[message.peer, message.first] = sent
            for message, going in zip(item.sends, item.going, strict=True):  # noqa: B007 (named below)
                going.wait(self._timeout_s)
        except TransportError as exc:
            raise self._named(exc, item, message, verb) from exc
        item.coming.clear()
        item.going.clear()
        for receive, data in aside:
            receive.write(data)

    def _bind(self, buffer: Tensor, segments: int, bucket: int) -> Bound:
        """The program over `buffer`, kept as long as the tensor is, and stays where it is."""
        key, place = (id(buffer), segments), _place(buffer)
        kept = self._bound.get(key)
        if kept is not None and kept[0]() is buffer and kept[1] == place:
            return kept[2]
        _require_a_row(buffer, bucket)
        memory = buffer.data  # views of the tensor itself would keep it, and all this, for ever
        bound = bind(self._program, self._num_chunks, self._is_local, memory, segments)
        self._bound[key] = weakref.ref(buffer, lambda _: self._bound.pop(key, None)), place, bound
        return bound

    def _named(
        self, error: TransportError, item: Item, with_: BoundSend | BoundReceive | None, verb: str
    ) -> TransportError:
        """The error with the stage and the peer that it concerns."""
        peer = with_.peer if with_ else "?"
        where = f"stage {item.stage}, segment {item.segment}"
        if isinstance(error, PeerTimeout):
            problem = PeerTimeout(f"{where}: rank {peer} {verb} nothing for {self._timeout_s:g} s")
            problem.stage = item.stage
            return problem
        return TransportError(f"{where}: exchange with rank {peer} failed: {error}")


def _require_a_row(buffer: Tensor, bucket: int) -> None:
    if buffer.dim() != 1 or not buffer.is_contiguous():
        raise UsageError(
            f"bucket {bucket}: a buffer of shape {tuple(buffer.shape)} and stride "
            f"{buffer.stride()}: only rows without gaps are summed in place; give a contiguous "
            "one, view(-1)"
        )


_Place = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


def _place(buffer: Tensor) -> _Place:
    """Where it lies, which `buffer.data = ...` and `resize_` change, and how."""
    return buffer.data_ptr(), buffer.shape, buffer.stride(), buffer.dtype


def make_collective(
    name: str,
    schedule: Schedule | None,
    rank: int,
    fabric: Fabric,
    group: "Group",
    timeout_s: float,
) -> Collective:
    """The collective that carries out `schedule`, or, without one, `native` or `noop` by name."""
    if schedule is not None:
        return ScheduledCollective(schedule, rank, fabric, group.transport(), timeout_s)
    if name == NoCollective.name:
        return NoCollective()
    if name == NativeCollective.name:
        return NativeCollective(group, timeout_s)
    raise UsageError(f"algorithm {name!r} has no schedule, and is neither noop nor native")


class Group(AllReduces, Protocol):
    """What a group offers to the collectives."""

    def transport(self) -> Transport: ...
