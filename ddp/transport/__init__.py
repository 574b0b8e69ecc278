"""How two ranks exchange a chunk: the protocol; its implementations are the files beside this one.

A transport moves bytes between pairs of ranks and knows nothing of schedules, buckets or sums.
"""

from typing import Protocol

from torch import Tensor


class Pending(Protocol):
    """A send or a receive that was posted and may still be under way."""

    def wait(self, timeout_s: float) -> None:
        """Return once the tensor may be reused (send) or read (receive).

        Raises PeerTimeout after `timeout_s`, TransportError where the peer cannot be reached.
        """


class Transport(Protocol):
    """Posts sends and receives without blocking; tensors are contiguous, with one element or more.

    Messages with the same (source, destination, tag) arrive in the order in which they were sent.
    A send may stay pending until its peer has posted the receive.
    """

    def send(self, tensor: Tensor, peer: int, tag: int) -> Pending: ...

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Pending: ...

    def close(self) -> None: ...
