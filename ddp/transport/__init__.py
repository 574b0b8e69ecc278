"""How two ranks exchange a chunk: the protocol; its implementations are the files beside this one.

A transport moves bytes between pairs of ranks and knows nothing of schedules, buckets or sums.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Pending(Protocol):
    """A send or a receive that was posted and may still be under way."""

    def wait(self, timeout_s: float) -> None:
        """Return once the tensor may be reused (send) or read (receive).

        Raises PeerTimeout after `timeout_s`, TransportError where the peer cannot be reached.
        """


class Loan(Protocol):
    """A receive whose data lies where the transport has it, perhaps in the peer's own memory."""

    @property
    def is_the_peers(self) -> bool:
        """Whether the data, which was waited for, is the peer's own tensor, and may be written."""

    def wait(self, timeout_s: float) -> Tensor | None:
        """The data, to be used until `end`; None where `like` holds it. Raises as Pending.wait."""

    def end(self) -> None:
        """It was read. Until then the send may stay pending."""

    def hand_back(self, written: Tensor, tag: int) -> Pending:
        """`end` it, and send `written`, for a receive into the very tensor that was lent. Where
        that is the data, it must have these values already: then nothing moves.
        """


class Transport(Protocol):
    """Posts sends and receives without blocking; tensors are contiguous, with one element or more.

    Messages with the same (source, destination, tag) arrive in the order in which they were sent.
    A send may stay pending until its peer has waited for the receive and ended the loan.
    """

    def allocate(self, rows: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        """Rows of zeros, by number of elements, where this transport moves them best.

        Raises TransportError where memory is too small.
        """

    def send(self, tensor: Tensor, peer: int, tag: int) -> Pending: ...

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Pending: ...

    def borrow(self, like: Tensor, peer: int, tag: int) -> Loan:
        """As `recv`, for data of the size and dtype of `like`, which is left as it is."""

    def close(self) -> None: ...
