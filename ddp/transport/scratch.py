"""Memory for what was received and is not yet where it belongs, kept for the next message.

Owns the loans of transports that can only receive into a tensor of this rank.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ddp.transport import Pending


def zeros(rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
    """Rows in ordinary memory, by number of elements."""
    return [torch.zeros(numel, dtype=dtype) for numel, dtype in rows]


class Scratch:
    """Buffers by dtype. Used by one thread at a time."""

    def __init__(self) -> None:
        self._free: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)

    def take(self, like: Tensor) -> Tensor:
        """A row of as many elements as `like` or more."""
        free = self._free[like.dtype]
        for index in range(len(free) - 1, -1, -1):
            if free[index].numel() >= like.numel():
                return free.pop(index)
        return torch.empty_like(like)

    def give_back(self, scratch: Tensor) -> None:
        self._free[scratch.dtype].append(scratch)


class SendsBack(Protocol):
    """Sends to the rank from which a loan is."""

    def __call__(self, tensor: Tensor, *, tag: int) -> Pending: ...


class ScratchLoan:
    """A message that is received into scratch memory."""

    is_the_peers = False
    __slots__ = ("_landing", "_pending", "_scratch", "_send", "_taken")

    def __init__(
        self,
        pending: Pending,
        landing: Tensor,
        taken: Tensor,
        scratch: Scratch,
        send: SendsBack,
    ) -> None:
        self._pending = pending
        self._send = send
        self._landing = landing
        self._taken = taken
        self._scratch = scratch

    def wait(self, timeout_s: float) -> Tensor:
        self._pending.wait(timeout_s)
        return self._landing

    def hand_back(self, written: Tensor, tag: int) -> Pending:
        self.end()
        return self._send(written, tag=tag)

    def end(self) -> None:
        self._scratch.give_back(self._taken)
