"""Transport between threads of one process, as unkind as a transport may be.

Owns delays and lateness: a message is read from its source only when one of its two sides waits
for it, after a delay drawn from a seed; and what is borrowed is read, or written, in the sender's
own memory until the loan ends. So what a fast network forgives shows here: a source that its sender
writes before its send was acknowledged raises, and so do a send never waited for, at close, and one
told to have landed whose values are not there.
"""

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, equal

from ddp.errors import PeerTimeout, TransportError
from ddp.transport.scratch import zeros

Key = tuple[int, int, int]  # source, destination, tag


class MemoryNetwork:
    """Connects `num_ranks` threads. Delays are uniform between 0 and `max_delay_s`, by seed."""

    def __init__(self, num_ranks: int, seed: int = 0, max_delay_s: float = 0.0) -> None:
        self.num_ranks = num_ranks
        self._seed = seed
        self._max_delay_s = max_delay_s
        self._changed = threading.Condition()
        self._unmatched: dict[Key, deque[_Message]] = defaultdict(deque)
        self._num_posted: dict[Key, int] = defaultdict(int)
        self._closed: set[int] = set()

    def transport(self, rank: int) -> "MemoryTransport":
        return MemoryTransport(self, rank)

    def post(
        self,
        key: Key,
        *,
        source: Tensor | None = None,
        target: Tensor | None = None,
        borrows: bool = False,
        landed: bool = False,
    ) -> "_Message":
        """Join the oldest message that still lacks this side, or begin one."""
        with self._changed:
            queue = self._unmatched[key]
            waits_for_us = (
                queue and (queue[0].source if target is None else queue[0].target) is None
            )
            message = queue.popleft() if waits_for_us else self._begin(key)
            if source is not None:
                message.source, message.snapshot = source, source.clone()
                message.landed = landed
            else:
                message.target, message.borrowed = target, borrows
            if not waits_for_us:
                queue.append(message)
            self._changed.notify_all()
            return message

    def deliver(self, message: "_Message", peer: int, timeout_s: float) -> None:
        """Copy, unless the other side did; raises when it never comes."""
        with self._changed:
            self._wait(lambda: message.matched or peer in self._closed, peer, timeout_s)
            if not message.matched:
                raise TransportError(f"rank {peer} has closed its transport")
            mine = not message.claimed and (not message.borrowed or message.landed)
            message.claimed |= mine
        if mine:
            time.sleep(message.delay_s)
            message.copy()
            with self._changed:
                message.delivered = True
                self._changed.notify_all()
        with self._changed:
            self._wait(lambda: message.delivered, peer, timeout_s)
        if message.fault:
            raise TransportError(message.fault)

    def lend(self, message: "_Message", peer: int, timeout_s: float) -> Tensor | None:
        """The sender's own memory, to be used until `give_back`; None where it has landed."""
        with self._changed:
            self._wait(lambda: message.matched or peer in self._closed, peer, timeout_s)
            if message.source is None:
                raise TransportError(f"rank {peer} has closed its transport")
        if message.landed:
            self.deliver(message, peer, timeout_s)
            return None
        time.sleep(message.delay_s)
        if message.misfit() or message.written():
            self.give_back(message)
        return message.source

    def give_back(self, message: "_Message", written: Tensor | None = None) -> None:
        """Raises where it is not any more what was sent, or `written` there."""
        if written is not None:
            message.snapshot = written
        message.fault = message.misfit() or message.written()
        with self._changed:
            message.delivered = True
            self._changed.notify_all()
        if message.fault:
            raise TransportError(message.fault)

    def leave(self, rank: int) -> None:
        with self._changed:
            self._closed.add(rank)
            self._changed.notify_all()

    def _begin(self, key: Key) -> "_Message":
        self._num_posted[key] += 1
        generator = random.Random(f"{self._seed} {key} {self._num_posted[key]}")
        return _Message(key, generator.uniform(0, self._max_delay_s))

    def _wait(self, condition: Callable[[], bool], peer: int, timeout_s: float) -> None:
        if not self._changed.wait_for(condition, timeout_s):
            raise PeerTimeout(f"rank {peer} did not answer within {timeout_s:g} s")


class MemoryTransport:
    """One rank's end of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self._network = network
        self._rank = rank
        self._unacknowledged: set[_Message] = set()

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return zeros(rows)

    def send(self, tensor: Tensor, peer: int, tag: int) -> "MemoryPending":
        return self._send(tensor, peer, tag)

    def _send(
        self, tensor: Tensor, peer: int, tag: int, *, landed: bool = False
    ) -> "MemoryPending":
        message = self._network.post((self._rank, peer, tag), source=tensor, landed=landed)
        self._unacknowledged.add(message)

        def acknowledge(timeout_s: float) -> None:
            self._network.deliver(message, peer, timeout_s)
            self._unacknowledged.discard(message)

        return MemoryPending(acknowledge)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> "MemoryPending":
        message = self._network.post((peer, self._rank, tag), target=tensor)
        return MemoryPending(lambda timeout_s: self._network.deliver(message, peer, timeout_s))

    def borrow(self, like: Tensor, peer: int, tag: int) -> "MemoryLoan":
        message = self._network.post((peer, self._rank, tag), target=like, borrows=True)
        return MemoryLoan(self._network, message, peer, partial(self._send, landed=True))

    def close(self) -> None:
        """Leave the network. Raises TransportError if a send was never acknowledged."""
        self._network.leave(self._rank)
        if self._unacknowledged:
            source, destination, tag = min(message.key for message in self._unacknowledged)
            raise TransportError(
                f"rank {source}: {len(self._unacknowledged)} sends were never acknowledged, "
                f"one of them to rank {destination}, tag {tag}"
            )


class MemoryPending:
    """A message under way, seen from one of its sides."""

    def __init__(self, finish: Callable[[float], None]) -> None:
        self._finish = finish

    def wait(self, timeout_s: float) -> None:
        self._finish(timeout_s)


class MemoryLoan:
    """A message that is read where its sender has it, and may be written there."""

    is_the_peers = True

    def __init__(
        self,
        network: MemoryNetwork,
        message: "_Message",
        peer: int,
        send_landed: Callable[[Tensor, int, int], "MemoryPending"],
    ) -> None:
        self._network = network
        self._send_landed = send_landed
        self._message = message
        self._peer = peer

    def wait(self, timeout_s: float) -> Tensor | None:
        return self._network.lend(self._message, self._peer, timeout_s)

    def end(self) -> None:
        self._network.give_back(self._message)

    def hand_back(self, written: Tensor, tag: int) -> "MemoryPending":
        self._network.give_back(self._message, written)
        return self._send_landed(written, self._peer, tag)


class _Message:
    def __init__(self, key: Key, delay_s: float) -> None:
        self.key = key
        self.delay_s = delay_s
        self.source: Tensor | None = None
        self.snapshot: Tensor | None = None
        self.target: Tensor | None = None
        self.borrowed = False
        self.landed = False
        self.claimed = False
        self.delivered = False
        self.fault = ""

    @property
    def matched(self) -> bool:
        return self.source is not None and self.target is not None

    @property
    def name(self) -> str:
        source, destination, tag = self.key
        return f"message from rank {source} to rank {destination}, tag {tag}"

    def misfit(self) -> str:
        """What is wrong with the two sides, if anything."""
        assert self.source is not None and self.target is not None
        if self.source.shape == self.target.shape and self.source.dtype == self.target.dtype:
            return ""
        return (
            f"{self.name}: {tuple(self.source.shape)} {self.source.dtype} sent, "
            f"{tuple(self.target.shape)} {self.target.dtype} expected"
        )

    def written(self) -> str:
        """Whether the source is not any more what was sent, in words."""
        assert self.source is not None and self.snapshot is not None
        if equal(self.source, self.snapshot):
            return ""
        return f"{self.name}: its source was written before it was acknowledged"

    def copy(self) -> None:
        self.fault = self.misfit()
        if not self.fault:
            assert self.source is not None and self.target is not None
            self.fault = self.written()
            if not self.landed:
                self.target.copy_(self.source)
            elif not self.fault and not equal(self.target, self.source):
                self.fault = f"{self.name}: it was told to have landed, and is not there"
