"""Transport over torch point-to-point messages (gloo): between nodes, and inside them.

Owns the translation of torch's calls and errors. Peers are ranks of the group it is given.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ddp.errors import PeerTimeout, TransportError
from ddp.transport.scratch import Scratch, ScratchLoan, zeros


class Work(Protocol):
    """torch's handle of an operation under way."""

    def wait(self, timeout: timedelta = ..., /) -> bool: ...


class PointToPoint(Protocol):
    """The part of a torch process group that a transport needs."""

    def send(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work: ...

    def recv(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work: ...


class P2PTransport:
    """Sends and receives through `group`, whose owner closes it."""

    def __init__(self, group: PointToPoint) -> None:
        self._group = group
        self._scratch = Scratch()

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return zeros(rows)

    def send(self, tensor: Tensor, peer: int, tag: int) -> "PendingWork":
        try:
            return PendingWork(self._group.send([tensor], peer, tag))
        except RuntimeError as exc:
            raise translate(exc) from exc

    def recv(self, tensor: Tensor, peer: int, tag: int) -> "PendingWork":
        try:
            return PendingWork(self._group.recv([tensor], peer, tag))
        except RuntimeError as exc:
            raise translate(exc) from exc

    def borrow(self, like: Tensor, peer: int, tag: int) -> ScratchLoan:
        taken = self._scratch.take(like)
        landing = taken[: like.numel()]
        coming = self.recv(landing, peer, tag)
        return ScratchLoan(coming, landing, taken, self._scratch, partial(self.send, peer=peer))

    def close(self) -> None:
        """Nothing to do: the group is not ours."""


class PendingWork:
    """A torch operation under way, waited for with our errors."""

    __slots__ = ("_work",)

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self, timeout_s: float) -> None:
        try:
            self._work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as exc:
            raise translate(exc) from exc


def translate(error: RuntimeError) -> TransportError:
    """torch's error as ours, in one line and without its source position."""
    if isinstance(error, TransportError):
        return error
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip())
    reason = re.split(r"\. |\n", text, maxsplit=1)[0]
    if re.search(r"timed? ?out", reason, re.IGNORECASE):
        return PeerTimeout(reason)
    return TransportError(reason)
