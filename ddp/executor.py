"""Runs a schedule between real ranks: the only module that sends.

Owns the order of sends, receives and additions on one rank, and the count of bytes it sends. Does
not decide what to send (schedule) nor how bytes travel (transport).

A rank's program is its projection of the schedule, in a static order: segments enter one after
another, and item (stage, segment) starts at tick stage + offset(segment), lower segments first
within a tick, the same on every rank. Before an item starts, the segment's stage before it has
ended: its receives have arrived, its sends are acknowledged, its additions are done. So nothing
is written while a peer may still read it. A receive is posted one stage ahead, into a scratch
buffer unless its chunk is idle until then; a chunk that is both sent and written in one stage is
received into scratch and written once the send is acknowledged.

Why it cannot deadlock, even where a send waits for its peer's receive: posting never blocks, and
an item waits only for messages of items that come earlier in the static order. Take the earliest
item that some rank never starts. All ranks have started every item before it, so both ends of
every message it waits for are posted, and the transport delivers them. So it starts.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ddp.errors import PeerTimeout, TransportError, UsageError
from ddp.fabric import Fabric
from ddp.program import Message, project, wavefront
from ddp.schedule import Schedule, chunk_bounds
from ddp.timing import Traffic
from ddp.transport import Pending, Transport
from ddp.transport.p2p import P2PTransport, PointToPoint, Work, translate


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
        self.transport = transport
        self.timeout_s = timeout_s
        self.num_chunks = schedule.num_chunks
        self.program = project(schedule, rank)
        self.is_local = tuple(fabric.same_node(rank, peer) for peer in range(fabric.num_ranks))
        self.scratch = _Scratch()

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        run = _Run(self, buffer, segments, bucket)
        for stage, segment in wavefront(len(self.program), segments):
            run.end_stage(stage - 1, segment)
            run.start_stage(stage, segment)
        return Traffic(run.num_bytes[True], run.num_bytes[False])


class _Run:
    """One all_reduce under way on one rank."""

    def __init__(
        self, collective: ScheduledCollective, buffer: Tensor, segments: int, bucket: int
    ) -> None:
        self._collective = collective
        self._buffer = buffer
        self._segments = segments
        self._bucket = bucket
        self._sends: list[list[tuple[int, Pending]]] = [[] for _ in range(segments)]
        self._receives: dict[tuple[int, int], list[_Incoming]] = {}
        self.num_bytes: defaultdict[bool, int] = defaultdict(int)  # inside the node?

    def start_stage(self, stage: int, segment: int) -> None:
        self._post_receives(stage, segment)
        self._post_sends(stage, segment)
        self._post_receives(stage + 1, segment)

    def end_stage(self, stage: int, segment: int) -> None:
        """Wait for the stage's messages, then write what was received into scratch."""
        timeout_s = self._collective.timeout_s
        incoming = self._receives.pop((stage, segment), [])
        for each in incoming:
            with self._named(stage, segment, each.message.src, "sent"):
                each.pending.wait(timeout_s)
        for peer, pending in self._sends[segment]:
            with self._named(stage, segment, peer, "took"):
                pending.wait(timeout_s)
        self._sends[segment].clear()
        for each in incoming:
            if each.scratch is None:
                continue
            if each.message.reduce:
                each.target.add_(each.landing)
            else:
                each.target.copy_(each.landing)
            self._collective.scratch.give_back(each.scratch)

    def _post_sends(self, stage: int, segment: int) -> None:
        program = self._collective.program
        if stage >= len(program):
            return
        tag = stage * self._segments + segment
        for message in program[stage].sends:
            source = self._slice(segment, message)
            if source.numel():
                with self._named(stage, segment, message.dst, "took"):
                    pending = self._collective.transport.send(source, message.dst, tag)
                self._sends[segment].append((message.dst, pending))
                size_bytes = source.numel() * source.element_size()
                self.num_bytes[self._collective.is_local[message.dst]] += size_bytes

    def _post_receives(self, stage: int, segment: int) -> None:
        program = self._collective.program
        if stage >= len(program) or (stage, segment) in self._receives:
            return
        tag = stage * self._segments + segment
        posted = self._receives[stage, segment] = []
        for message in program[stage].receives:
            target = self._slice(segment, message)
            if not target.numel():
                continue
            direct = message in program[stage].direct
            scratch = None if direct else self._collective.scratch.take(target)
            landing = target if scratch is None else scratch[: target.numel()]
            with self._named(stage, segment, message.src, "sent"):
                pending = self._collective.transport.recv(landing, message.src, tag)
            posted.append(_Incoming(message, pending, target, landing, scratch))

    def _slice(self, segment: int, message: Message) -> Tensor:
        start, end = chunk_bounds(self._buffer.numel(), self._segments, segment)
        num_chunks = self._collective.num_chunks
        low, _ = chunk_bounds(end - start, num_chunks, message.first)
        _, high = chunk_bounds(end - start, num_chunks, message.last)
        return self._buffer[start + low : start + high]

    def _named(self, stage: int, segment: int, peer: int, verb: str) -> "_Named":
        return _Named(self._bucket, stage, segment, peer, verb, self._collective.timeout_s)


@dataclass(frozen=True, slots=True)
class _Named:
    """Inside, an error of the transport gets the bucket, stage and peer that it concerns."""

    bucket: int
    stage: int
    segment: int
    peer: int
    verb: str
    timeout_s: float

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        where = f"bucket {self.bucket}, stage {self.stage}, segment {self.segment}"
        if isinstance(error, PeerTimeout):
            raise PeerTimeout(
                f"{where}: rank {self.peer} {self.verb} nothing for {self.timeout_s:g} s"
            ) from error
        if isinstance(error, TransportError):
            raise TransportError(
                f"{where}: exchange with rank {self.peer} failed: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class _Incoming:
    message: Message
    pending: Pending
    target: Tensor
    landing: Tensor
    scratch: Tensor | None


class _Scratch:
    """Buffers that receives land in before they are added, kept for the next all_reduce."""

    def __init__(self) -> None:
        self._free: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)

    def take(self, like: Tensor) -> Tensor:
        free = self._free[like.dtype]
        for index in range(len(free) - 1, -1, -1):
            if free[index].numel() >= like.numel():
                return free.pop(index)
        return torch.empty_like(like)

    def give_back(self, scratch: Tensor) -> None:
        self._free[scratch.dtype].append(scratch)


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
        return ScheduledCollective(schedule, rank, fabric, P2PTransport(group), timeout_s)
    if name == NoCollective.name:
        return NoCollective()
    if name == NativeCollective.name:
        return NativeCollective(group, timeout_s)
    raise UsageError(f"algorithm {name!r} has no schedule, and is neither noop nor native")


class Group(PointToPoint, AllReduces, Protocol):
    """What a torch process group offers to the collectives."""
