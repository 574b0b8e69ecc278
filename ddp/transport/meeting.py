"""How the ranks of a group find each other: one socket for each pair, opened once, all of them.

Owns addresses, the handshake and its secret, and whether two ranks of a node really share memory:
that is not believed because somebody says so, but tried, through a piece of it.
"""

import secrets
import select
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from time import monotonic
from typing import Any

from ddp.errors import PeerTimeout, TransportError
from ddp.fabric import Fabric
from ddp.transport.trial import who_shares

HELLO = struct.Struct("<16sI")  # the group's secret, and the rank that calls
SECRET_BYTES = 16

Exchange = Callable[[str, dict[str, object]], list[dict[str, Any]]]
"""What every rank says about a topic, by rank."""


@dataclass(frozen=True)
class Peer:
    """A connected peer. `shares_memory`: whether both were seen to have the same memory."""

    sock: socket.socket
    shares_memory: bool


@dataclass(frozen=True)
class Meeting:
    """What a rank brings along. `address`: its own on the fabric, a literal one."""

    rank: int
    fabric: Fabric
    exchange: Exchange
    address: str
    timeout_s: float
    shares_memory: bool

    def connect(self) -> dict[int, Peer]:
        """A socket to each peer, by rank; every rank must call it.

        Raises TransportError; PeerTimeout, which names who did not come.
        """
        deadline = monotonic() + self.timeout_s
        with ExitStack() as stack:
            tcp = stack.enter_context(_listening_tcp(self.address, self.fabric.num_ranks))
            local = stack.enter_context(_listening_local(self.fabric.num_ranks))
            facts = self.exchange(
                "sockets",
                {
                    "tcp": tcp.getsockname()[:2],
                    "local": local.getsockname().hex(),
                    "secret": secrets.token_hex(SECRET_BYTES),
                },
            )
            secret = bytes.fromhex(facts[0]["secret"])
            socks = stack.enter_context(_closing_on_error())
            for rank in range(self.rank):
                socks[rank] = self._call(rank, facts[rank], secret)
            self._answer(socks, (tcp, local), secret, deadline)
            local_socks = {r: sock for r, sock in socks.items() if sock.family == socket.AF_UNIX}
            sharing = who_shares(dict(sorted(local_socks.items())), deadline)
        return {rank: Peer(sock, rank in sharing) for rank, sock in socks.items()}

    def _call(self, rank: int, facts: Mapping[str, Any], secret: bytes) -> socket.socket:
        host, port = facts["tcp"]
        try:
            sock = self._connect_local(rank, facts) or socket.create_connection(
                (host, port), self.timeout_s, source_address=(self.address, 0)
            )
            _without_delay(sock)
            sock.sendall(HELLO.pack(secret, self.rank))
        except OSError as exc:
            raise TransportError(
                f"rank {self.rank} at {self.address} could not connect to rank {rank} at {host}, "
                f"port {port}: {exc.strerror or exc}; set GLOO_SOCKET_IFNAME to the network "
                "interface that leads to the other nodes"
            ) from exc
        return sock

    def _connect_local(self, rank: int, facts: Mapping[str, Any]) -> socket.socket | None:
        """Through this node's kernel; None where the peer is not to be found there."""
        if not self.shares_memory or not self.fabric.same_node(rank, self.rank):
            return None
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(self.timeout_s)
            sock.connect(bytes.fromhex(facts["local"]))
        except OSError:  # another machine or namespace, whatever the fabric says
            sock.close()
            return None
        return sock

    def _answer(
        self,
        socks: dict[int, socket.socket],
        listeners: tuple[socket.socket, ...],
        secret: bytes,
        deadline: float,
    ) -> None:
        """Let all higher ranks in, and nobody else."""
        while missing := sorted(set(range(self.fabric.num_ranks)) - {self.rank, *socks}):
            left_s = deadline - monotonic()
            ready = select.select(listeners, (), (), left_s)[0] if left_s > 0 else []
            if not ready:
                raise PeerTimeout(
                    f"rank {self.rank} waited {self.timeout_s:g} s for connections from rank "
                    f"{', '.join(map(str, missing))}"
                )
            sock = ready[0].accept()[0]
            rank = _who_calls(sock, secret, left_s)
            if rank in missing:
                _without_delay(sock)
                socks[rank] = sock
            else:
                sock.close()


def _without_delay(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _who_calls(sock: socket.socket, secret: bytes, timeout_s: float) -> int | None:
    """The rank at the other end; None for strangers."""
    sock.settimeout(timeout_s)
    try:
        said = sock.recv(HELLO.size, socket.MSG_WAITALL)
    except OSError:
        return None
    if len(said) < HELLO.size:
        return None
    theirs, rank = HELLO.unpack(said)
    return int(rank) if secrets.compare_digest(theirs, secret) else None


@contextmanager
def _closing_on_error() -> Iterator[dict[int, socket.socket]]:
    """Sockets that are closed if what is inside fails."""
    socks: dict[int, socket.socket] = {}
    try:
        yield socks
    except BaseException:
        for sock in socks.values():
            sock.close()
        raise


@contextmanager
def _listening_tcp(address: str, backlog: int) -> Iterator[socket.socket]:
    family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError as exc:
            raise TransportError(f"no socket at {address}: {exc.strerror}") from exc
        listener.listen(backlog)
        yield listener


@contextmanager
def _listening_local(backlog: int) -> Iterator[socket.socket]:
    """Without a name in any file system: the kernel gives one, of this network namespace only."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen(backlog)
        yield listener
