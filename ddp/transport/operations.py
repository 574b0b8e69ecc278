"""A message under way, seen from one of its ends: what a rank waits for.

Owns what is known of it until it is done; what moves it is `connection`'s.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ddp.transport.scratch import Scratch


class Carrier(Protocol):
    """The connection that a message goes through."""

    scratch: Scratch

    def finish(self, operation: "Operation", timeout_s: float) -> None:
        """Return once it is done. Raises PeerTimeout, TransportError."""

    def send(self, tensor: Tensor, tag: int) -> "Sending": ...

    def tell_read(self, message: int) -> None:
        """The peer's message of that number is not needed any more."""

    def hand_back(self, written: Tensor, tag: int, message: int) -> "Sending":
        """The same, and what the peer expects with this tag lies where that message did."""


@dataclass(slots=True, eq=False)
class Sending:
    """A message under way to the peer. `tensor` is kept alive until it is done."""

    connection: Carrier
    tensor: Tensor
    done: bool = False

    def wait(self, timeout_s: float) -> None:
        self.connection.finish(self, timeout_s)


@dataclass(slots=True, eq=False)
class Receiving:
    """A message that is expected, straight into `tensor`."""

    connection: Carrier
    tensor: Tensor
    done: bool = False

    def wait(self, timeout_s: float) -> None:
        self.connection.finish(self, timeout_s)


@dataclass(slots=True, eq=False)
class Borrowing:
    """A message that is expected, of the size and dtype of `tensor`, wherever it comes to lie.

    `message`: its number where the peer must be told that it was read. `taken`: scratch memory.
    Neither, and no data, where `tensor` holds it.
    """

    connection: Carrier
    tensor: Tensor
    done: bool = False
    data: Tensor | None = None
    message: int | None = None
    taken: Tensor | None = None

    @property
    def is_the_peers(self) -> bool:
        return self.message is not None

    def wait(self, timeout_s: float) -> Tensor | None:
        self.connection.finish(self, timeout_s)
        return self.data

    def hand_back(self, written: Tensor, tag: int) -> Sending:
        if self.message is not None:
            return self.connection.hand_back(written, tag, self.message)
        self.end()
        return self.connection.send(written, tag)

    def end(self) -> None:
        if self.message is not None:
            self.connection.tell_read(self.message)
        elif self.taken is not None:
            self.connection.scratch.give_back(self.taken)


Expected = Receiving | Borrowing
Operation = Sending | Receiving | Borrowing
