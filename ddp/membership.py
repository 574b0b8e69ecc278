"""Who takes part: a private group of the ranks that reduce together, and what they tell each other.

Owns the exchange of facts through the store, the identity of a rank's node, and the life of the
sockets between the ranks. Decides nothing about gradients.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha1
from pathlib import Path
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ddp.device import Line
from ddp.errors import PeerTimeout, TransportError, UsageError
from ddp.fabric import Fabric
from ddp.native import MakeGroup, Native, close_all
from ddp.nic import own_address
from ddp.transport import Transport
from ddp.transport.meeting import Meeting
from ddp.transport.p2p import P2PTransport, Work, translate
from ddp.transport.scratch import zeros
from ddp.transport.sockets import IS_SUPPORTED, SocketTransport

Facts = dict[str, object]


class _Gloo(Protocol):
    """What is used of torch's ProcessGroupGloo, whose methods have no types."""

    def send(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work: ...

    def recv(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work: ...

    def allreduce(self, tensors: list[Tensor], op: object, timeout: timedelta, /) -> Work: ...

    def broadcast(self, tensors: list[Tensor], options: dist.BroadcastOptions, /) -> Work: ...


class Membership:
    """The ranks of one process group, under a name of their own in its store."""

    def __init__(self, process_group: dist.ProcessGroup | None, timeout_s: float) -> None:
        if not dist.is_initialized():
            raise UsageError("torch.distributed is not initialised: call init_process_group first")
        group = process_group or dist.group.WORLD
        assert group is not None
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.timeout_s = timeout_s
        if self.rank < 0:
            raise UsageError("this rank is not in process_group: only its members may wrap a model")
        store = group.get_group_store()
        members = "-".join(map(str, dist.get_process_group_ranks(group)))
        label = f"ddp/{sha1(members.encode(), usedforsecurity=False).hexdigest()}"
        # members wrap their models in one order, so that the counts of all of them agree
        generation = store.add(f"{label}/{self.rank}", 1)
        self.store = PrefixStore(f"{label}/{generation}", store)

    def exchange(self, topic: str, facts: Facts) -> list[Facts]:
        """What every rank says about `topic`, by rank.

        Raises PeerTimeout naming who is silent, TransportError when the store is gone.
        """
        try:
            return self._exchange(topic, facts)
        except TransportError:
            raise
        except RuntimeError as exc:
            raise TransportError(
                f"rank {self.rank} lost the store before it had the {topic} of every rank: "
                f"{translate(exc)}"
            ) from exc

    def _exchange(self, topic: str, facts: Facts) -> list[Facts]:
        self.store.set(f"{topic}/{self.rank}", json.dumps(facts))
        keys = [f"{topic}/{rank}" for rank in range(self.size)]
        deadline = time.monotonic() + self.timeout_s
        while not self.store.check(keys):
            if time.monotonic() > deadline:
                silent = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
                raise PeerTimeout(
                    f"rank {self.rank} waited {self.timeout_s:g} s for the {topic} of rank "
                    f"{', '.join(map(str, silent))}; every rank of the group must wrap its model, "
                    "in the same order"
                )
            time.sleep(0.005)
        return [json.loads(self.store.get(key)) for key in keys]

    def connect(self) -> "PrivateGroup":
        """Open sockets between all members; every one of them must call this."""
        return PrivateGroup(PrefixStore("gloo", self.store), self)


class PrivateGroup:
    """A gloo group that nobody else uses. Closing it closes its sockets, which peers notice."""

    def __init__(self, store: Store, membership: Membership) -> None:
        timeout = timedelta(seconds=membership.timeout_s)
        self.rank, self.size = membership.rank, membership.size
        self._membership = membership
        self._sockets: SocketTransport | None = None
        self._device: _Device | None = None
        try:
            # not dist.new_group: its names repeat after a group is destroyed, and meet stale keys
            self._gloo: _Gloo | None = cast(
                _Gloo, dist.ProcessGroupGloo(store, self.rank, self.size, timeout)
            )
        except RuntimeError as exc:
            raise TransportError(
                f"rank {self.rank} could not connect to its peers: {translate(exc)}"
            ) from exc

    def send(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work:
        return self._open().send(tensors, peer, tag)

    def recv(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work:
        return self._open().recv(tensors, peer, tag)

    def allreduce(self, tensors: list[Tensor], op: object, timeout: timedelta, /) -> Work:
        return self._open().allreduce(tensors, op, timeout)

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A buffer for all-reduces of this group, 1-D: zeros, where peers of the node can read."""
        return self.allocate_all([(numel, dtype)])[0]

    def allocate_all(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        """As `allocate`, several at once. Raises TransportError where memory is too small."""
        return self._sockets.allocate(rows) if self._sockets else zeros(rows)

    def open_transport(self, fabric: Fabric, *, shares_memory: bool) -> None:
        """Connect to the members, who live where `fabric` says, by sockets of our own; all of them
        must call it, before they reduce. Without it chunks travel over gloo's.
        """
        if self.size == 1 or not IS_SUPPORTED or self._sockets is not None:
            return
        membership = self._membership
        meeting = Meeting(
            self.rank,
            fabric,
            membership.exchange,
            own_address(os.environ, store_host(membership.store)),
            membership.timeout_s,
            shares_memory,
        )
        self._sockets = SocketTransport(meeting.connect())

    @property
    def shares_memory_with(self) -> tuple[int, ...]:
        """The members that were seen to have the same memory."""
        return tuple(sorted(self._sockets.sharing)) if self._sockets else ()

    def transport(self) -> Transport:
        """What carries chunks between the members: our own sockets once they are open."""
        return self._sockets or P2PTransport(self)

    def take_device(self, make_group: MakeGroup, line: Line) -> None:
        """From now on tensors go through groups of a device's backend; all members must call it."""
        self._device = _Device(make_group, line)
        self.make_native("everybody", range(self.size))

    @property
    def on_host(self) -> bool:
        """Whether no device was taken."""
        return self._device is None

    @property
    def everybody(self) -> Native:
        """All members' group of the device's backend."""
        assert self._device is not None
        return self._device.groups[0]

    def make_native(self, name: str, members: Sequence[int]) -> Native:
        """Some members' own group of the device's backend, closed with this one."""
        assert self._device is not None
        return self._device.make(name, members)

    def broadcast_bytes(self, tensors: Sequence[Tensor], *, of_host: bool = False) -> None:
        """Give `tensors` of any dtype, on one device, the values that they have on rank 0.

        `of_host`: they are words of ours on the CPU, wherever the module is.
        """
        filled = [tensor for tensor in tensors if tensor.numel()]
        if not filled or self.size == 1:
            return
        flat = torch.cat([_as_bytes(tensor) for tensor in filled])
        if self._device is None or of_host:
            self._broadcast(flat)
        else:
            self._device.broadcast(flat)
        if self.rank:
            sizes = [tensor.numel() * tensor.element_size() for tensor in filled]
            for tensor, part in zip(filled, torch.split(flat, sizes), strict=True):
                # .data: autograd may hold these for a backward that is still to come
                tensor.data.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

    def close(self) -> None:
        self._gloo = None
        if self._sockets is not None:
            self._sockets.close()
        if self._device is not None:
            self._device.close()

    def _broadcast(self, flat: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        try:
            self._open().broadcast([flat], options).wait()
        except RuntimeError as exc:
            raise translate(exc) from exc

    def _open(self) -> _Gloo:
        if self._gloo is None:
            raise TransportError("the connections to all peers are closed")
        return self._gloo


@dataclass(frozen=True)
class _Device:
    """What reaches the tensors of a device: groups of its backend, the first of all members."""

    make_group: MakeGroup
    line: Line
    groups: list[Native] = field(default_factory=list)

    def make(self, name: str, members: Sequence[int]) -> Native:
        self.groups.append(self.make_group(name, members))
        return self.groups[-1]

    def broadcast(self, flat: Tensor) -> None:
        self.groups[0].broadcast(flat)
        self.line.settle("what rank 0 has")

    def close(self) -> None:
        close_all(self.groups)


def store_host(store: Store) -> str | None:
    """Where the store of a group is kept; None where it is no machine."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else None


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def node_identity(environment: Mapping[str, str]) -> str:
    """The node of this process: as its launcher says, else the kernel. Never the hostname."""
    for variable in ("DDPLAB_NODE", "GROUP_RANK"):
        if variable in environment:
            return f"{variable}={environment[variable]}"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"boot={boot_id} network={os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116


def fabric_from(identities: Sequence[str]) -> Fabric:
    """Node numbers as the launcher gave them, else in order of first appearance, by rank.

    Raises UsageError where some ranks were told their node and others were not.
    """
    sources = {identity.partition("=")[0] for identity in identities}
    if len(sources) > 1:
        raise UsageError(
            f"ranks name their nodes in different ways: {', '.join(identities)}; "
            "set DDPLAB_NODE on every rank, or on none"
        )
    values = [identity.partition("=")[2] for identity in identities]
    if all(value.isdecimal() for value in values):
        return Fabric(tuple(map(int, values)))
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return Fabric(tuple(numbers[value] for value in values))
