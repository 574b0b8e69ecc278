"""Frames to and from one peer over a stream socket, none of which blocks.

Owns what travels: a header, then the bytes of the message, or, inside a node, only the place where
they lie in memory that both ranks share. Messages are matched with receives by tag, in order; one
that nobody has asked for yet stays in the socket, and what is behind it too, so that nothing piles
up here. (The executor asks in the order in which its peers send: ddp.executor says why that ends.)
"""

import os
import socket
import struct
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from ddp.transport.frames import DTYPES, HEADER, NUMBER_OF, Inbox, Kind, bytes_of
from ddp.transport.loop import READ, WRITE, Loop
from ddp.transport.operations import Borrowing, Expected, Operation, Receiving, Sending
from ddp.transport.scratch import Scratch
from ddp.transport.shared import PeerMemory, Place, SharedMemory

INLINE_BYTES = 16 * 1024
"""Up to here a message inside a node is copied through the socket: it then needs no answer."""
MAX_FDS = 8


@dataclass(slots=True)
class _Outgoing:
    """What is still to be written: `rest` first, then `payload`."""

    rest: memoryview
    payload: memoryview | None
    fds: tuple[int, ...]
    sending: Sending | None


@dataclass(slots=True)
class _Incoming:
    """The message whose bytes are arriving, and where they go."""

    expected: Expected
    rest: memoryview


class Connection:
    """One peer, over a socket that does not block. `memory`: what both share, inside a node."""

    def __init__(
        self, loop: Loop, sock: socket.socket, scratch: Scratch, memory: SharedMemory | None
    ) -> None:
        sock.setblocking(False)
        self.fault: str | None = None
        self.scratch = scratch
        self._loop = loop
        self._socket = sock
        self._memory = memory
        self._peer_memory = PeerMemory()
        self._fds: deque[int] = deque()
        self._outgoing: deque[_Outgoing] = deque()
        self._expected: defaultdict[int, deque[Expected]] = defaultdict(deque)
        self._inbox = Inbox()
        self._incoming: _Incoming | None = None
        self._held: tuple[int, ...] | None = None  # a header whose message nobody has asked for
        self._lent: dict[int, Sending] = {}
        self._num_lent = self._num_borrowed = 0
        self._shown: set[int] = set()
        self._watch()

    def fileno(self) -> int:
        return self._socket.fileno()

    # -- sending

    def send(self, tensor: Tensor, tag: int) -> Sending:
        sending = Sending(self, tensor)
        num_bytes, dtype = tensor.numel() * tensor.element_size(), NUMBER_OF[tensor.dtype]
        place = None
        if self._memory is not None and num_bytes > INLINE_BYTES:
            place = self._memory.place(tensor)
        if place is None:
            header = HEADER.pack(Kind.BYTES, tag, num_bytes, dtype, 0, 0)
            self._write(header, bytes_of(tensor), sending=sending)
        else:
            self._show(place.arena)
            self._lent[self._num_lent] = sending
            self._num_lent += 1
            self._write(HEADER.pack(Kind.PLACE, tag, num_bytes, dtype, *place))
        return sending

    def tell_read(self, message: int) -> None:
        self._write(HEADER.pack(Kind.READ, message, 0, 0, 0, 0))

    def hand_back(self, written: Tensor, tag: int, message: int) -> Sending:
        sending = Sending(self, written)
        header = HEADER.pack(Kind.LANDED, tag, written.nbytes, NUMBER_OF[written.dtype], message, 0)
        self._write(header, sending=sending)
        return sending

    def _show(self, number: int) -> None:
        """Before the first message that lies in an arena: the peer maps it."""
        if number in self._shown:
            return
        assert self._memory is not None
        for gone in [each for each in self._shown if self._memory.find(each) is None]:
            self._shown.remove(gone)
            self._write(HEADER.pack(Kind.GONE, gone, 0, 0, 0, 0))
        arena = self._memory.find(number)
        assert arena is not None
        self._shown.add(number)
        self._write(HEADER.pack(Kind.ARENA, number, arena.size, 0, 0, 0), fds=(arena.fd,))

    def _write(
        self,
        header: bytes,
        payload: memoryview | None = None,
        *,
        fds: tuple[int, ...] = (),
        sending: Sending | None = None,
    ) -> None:
        self._outgoing.append(_Outgoing(memoryview(header), payload, fds, sending))
        if len(self._outgoing) == 1 and self.fault is None:
            self._flush()
            if self._outgoing:
                self._watch()

    def _flush(self) -> None:
        """Write what the kernel takes."""
        try:
            while self._outgoing:
                out = self._outgoing[0]
                if out.fds:
                    written = socket.send_fds(self._socket, [out.rest], list(out.fds))
                    out.fds = ()
                elif out.payload is None:
                    written = self._socket.send(out.rest)
                else:
                    written = self._socket.sendmsg((out.rest, out.payload))
                if written < len(out.rest):
                    out.rest = out.rest[written:]
                elif out.payload is not None and written < len(out.rest) + len(out.payload):
                    out.rest, out.payload = out.payload[written - len(out.rest) :], None
                else:
                    self._outgoing.popleft()
                    if out.sending is not None:
                        out.sending.done = True
        except BlockingIOError:
            pass
        except OSError as exc:
            self._break(exc.strerror or str(exc))

    # -- receiving

    def expect(self, expected: Expected, tag: int) -> None:
        self._expected[tag].append(expected)
        if self._held is not None and self._held[1] == tag:
            self._read()
            if self._held is None:
                self._watch()

    def finish(self, operation: Operation, timeout_s: float) -> None:
        if not operation.done:
            self._loop.run(operation, self, timeout_s)

    def handle(self, events: int) -> None:
        if events & WRITE:
            self._flush()
            if not self._outgoing:
                self._watch()
        if events & ~WRITE:
            self._read()
            if self._held is not None:
                self._watch()

    def _watch(self) -> None:
        if self.fault is not None:
            return
        events = 0 if self._held is not None else READ
        self._loop.watch(self, events | (WRITE if self._outgoing else 0))

    def _read(self) -> None:
        """Read what there is, up to a message that nobody has asked for."""
        try:
            while self._deal():
                if self._incoming is not None:
                    asked = len(self._incoming.rest)
                    num_bytes = self._socket.recv_into(self._incoming.rest)
                    self._incoming.rest = self._incoming.rest[num_bytes:]
                else:
                    room = self._inbox.room()
                    asked = len(room)
                    receive = (
                        self._receive_with_fds
                        if self._memory is not None
                        else self._socket.recv_into
                    )
                    num_bytes = receive(room)
                    self._inbox.end += num_bytes
                if not num_bytes:
                    self._break("it has closed the connection")
                if num_bytes < asked:  # there is no more for now
                    self._deal()
                    return
        except BlockingIOError:
            pass
        except OSError as exc:
            self._break(exc.strerror or str(exc))

    def _receive_with_fds(self, room: memoryview) -> int:
        num_bytes, ancillary, _, _ = self._socket.recvmsg_into(
            [room], socket.CMSG_SPACE(4 * MAX_FDS), socket.MSG_CMSG_CLOEXEC
        )
        for _, _, packed in ancillary:
            self._fds.extend(fd for (fd,) in struct.iter_unpack("i", packed))
        return num_bytes

    def _deal(self) -> bool:
        """Deal with all that is in the inbox. Whether more should be read."""
        while self.fault is None:
            if self._incoming is not None:
                taken = self._inbox.take_into(self._incoming.rest)
                self._incoming.rest = self._incoming.rest[taken:]
                if self._incoming.rest:
                    return True
                self._incoming.expected.done = True
                self._incoming = None
            if self._held is None:
                if self._inbox.size < HEADER.size:
                    return True
                self._held = HEADER.unpack_from(self._inbox.memory, self._inbox.start)
                self._inbox.start += HEADER.size
            if not self._begin(*self._held):
                return False
            self._held = None
        return False

    def _begin(self, kind: int, tag: int, num_bytes: int, dtype: int, arena: int, at: int) -> bool:
        """Deal with a header. False: nobody has asked for its message yet."""
        if kind == Kind.READ:
            self._lent.pop(tag).done = True
        elif kind == Kind.ARENA:
            self._peer_memory.add(tag, self._fds.popleft(), num_bytes)
        elif kind == Kind.GONE:
            self._peer_memory.drop(tag)
        elif not (waiting := self._expected.get(tag)):
            return False
        else:
            expected = waiting.popleft()
            if not waiting:
                del self._expected[tag]
            like = expected.tensor
            if num_bytes != like.numel() * like.element_size() or DTYPES[dtype] != like.dtype:
                self._break(
                    f"it sent {num_bytes:,} bytes of {DTYPES[dtype]}, where "
                    f"{like.numel() * like.element_size():,} of {like.dtype} were expected"
                )
            elif kind == Kind.LANDED:
                expected.done = self._lent.pop(arena).done = True
            elif kind == Kind.BYTES:
                self._incoming = _Incoming(expected, bytes_of(self._landing(expected)))
            else:
                self._take_place(expected, Place(arena, at))
        return True

    def _landing(self, expected: Expected) -> Tensor:
        if isinstance(expected, Receiving):
            return expected.tensor
        expected.taken = self.scratch.take(expected.tensor)
        expected.data = expected.taken[: expected.tensor.numel()]
        return expected.data

    def _take_place(self, expected: Expected, place: Place) -> None:
        like, message = expected.tensor, self._num_borrowed
        self._num_borrowed += 1
        data = self._peer_memory.view(place, like.numel() * like.element_size(), like.dtype)
        if isinstance(expected, Borrowing):
            expected.data, expected.message = data, message
        else:
            like.copy_(data)
            self.tell_read(message)
        expected.done = True

    # -- the end

    def shut(self) -> None:
        with suppress(OSError):  # it is not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.fault = self.fault or "it was closed"
        self._socket.close()
        self._peer_memory = PeerMemory()
        while self._fds:
            os.close(self._fds.popleft())

    def _break(self, reason: str) -> None:
        self._loop.watch(self, 0)
        self.fault = reason
