"""What the links between nodes carry, measured by the ranks themselves, for who has no other probe.

Owns the table that all ranks get. Which nodes are paired when is `ddp.probe_rounds`', how a stream
is measured `ddp.stream`'s; `torchrun ... -m ddp.probe` is `ddp.probe_command`, called at the end.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import monotonic, time
from typing import Any

import torch
from torch import Tensor

from ddp.errors import PeerTimeout, TransportError
from ddp.fabric import Fabric
from ddp.probe_rounds import Flow, Mode, rounds
from ddp.stream import Length, receive_stream, send_stream
from ddp.transport import Transport

SCHEMA = 1
BETWEEN = Length(skip_s=0.15, measure_s=0.4, most_s=2.0)
INSIDE = Length(skip_s=0.1, measure_s=0.2, most_s=1.0)
NUM_PINGS = 12
FULL_DUPLEX = 0.9
TOGETHER, PING, STREAM = 1, 2, 3
"""Tags of the messages."""


@dataclass(frozen=True)
class ProbedLink:
    """One link; `src` and `dst` are node numbers, the same one for the inside of a node.

    The rate is that of all its ranks together; the round trip is a message's of one element.
    """

    src: int
    dst: int
    mode: Mode
    measured_bytes_per_second: float
    round_trip_s: float


@dataclass(frozen=True)
class ProbeTable:
    """All links, and the wall clock of rank 0 (seconds since 1970) when they were measured."""

    links: tuple[ProbedLink, ...]
    measured_at: float

    def to_json(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """As `ddplab probe --json` has it; nodes by `names[number]`, else by number. What links
        were set to nobody knows here, so there is nothing that they could fall short of.
        """
        return {
            "schema": SCHEMA,
            "ok": True,
            "links": [self._link(link, names) for link in self.links],
            "measured_at": self.measured_at,
        }

    def _link(self, link: ProbedLink, names: Sequence[str] | None) -> dict[str, Any]:
        def name(node: int) -> str:
            return names[node] if names else str(node)

        return {
            **asdict(link),
            "src": name(link.src),
            "dst": name(link.dst),
            "mode": link.mode.value,
            "configured_bits_per_second": None,
            "ceiling_bytes_per_second": None,
            "ratio": None,
        }


def probe_links(
    transport: Transport, rank: int, fabric: Fabric, timeout_s: float = 10.0
) -> ProbeTable:
    """Measure; every rank of `fabric` must call this at the same point, and gets the same table.

    Two to five seconds, more on links below 2 Mbit/s. Raises TransportError, which names the link.
    """
    own = _Own(transport, rank, fabric.num_ranks, timeout_s)
    plan = rounds(fabric)
    flows = [flow for flows in plan for flow in flows]
    # all round trips before the first stream: they would wait for what it leaves in queues
    trips_s = own.sum_of([own.ping(flow) for flow in flows], "round trips")
    rates: dict[Flow, float] = {}
    for together in plan:
        rates |= own.stream(together)
        if _held_up(rates, together):  # a busy machine only takes away
            again = own.stream(together)
            rates |= {flow: max(rates[flow], again[flow]) for flow in together}
    (measured_at,) = own.sum_of([time() if rank == 0 else 0.0], "the end")
    links = (
        ProbedLink(flow.src, flow.dst, flow.mode, rates[flow], trip_s)
        for flow, trip_s in zip(flows, trips_s, strict=True)
    )
    return ProbeTable(tuple(links), measured_at)


def _held_up(rates: Mapping[Flow, float], flows: Sequence[Flow]) -> bool:
    """Whether one of these carried less, both ways at once, than it did alone."""
    alone = {(flow.src, flow.dst): rate for flow, rate in rates.items() if flow.alone}
    return any(
        rates[flow] < FULL_DUPLEX * alone[flow.src, flow.dst]
        for flow in flows
        if flow.mode is Mode.BOTH_WAYS
    )


@dataclass(frozen=True)
class _Own:
    """One rank's part. What it did not measure itself is 0, so that sums are the whole.

    Every sum is a meeting, too: nobody goes on before all have come.
    """

    transport: Transport
    rank: int
    num_ranks: int
    timeout_s: float

    def sum_of(self, values: Sequence[float], what: str) -> list[float]:
        """Element by element, over all ranks: rank 0 adds in the order of ranks, and tells."""
        own = torch.tensor([*values, 0.0], dtype=torch.float64)  # a message is never empty
        with _Named(what):
            if self.rank:
                self.transport.send(own, 0, TOGETHER).wait(self._patience_s)
                self.transport.recv(own, 0, TOGETHER).wait(self._patience_s)
            else:
                self._add_and_tell(own)
        return [float(value) for value in own[:-1]]

    def _add_and_tell(self, own: Tensor) -> None:
        peers = range(1, self.num_ranks)
        heard = [torch.zeros_like(own) for _ in peers]
        pending = [self.transport.recv(heard[peer - 1], peer, TOGETHER) for peer in peers]
        for each, theirs in zip(pending, heard, strict=True):
            each.wait(self._patience_s)
            own += theirs
        for each in [self.transport.send(own, peer, TOGETHER) for peer in peers]:
            each.wait(self.timeout_s)

    @property
    def _patience_s(self) -> float:
        """Others may still be measuring."""
        return self.timeout_s + BETWEEN.most_s

    def ping(self, flow: Flow) -> float:
        """Seconds of a round trip between its first two ranks, on the one that asks."""
        asking, answering = flow.lanes[0]
        if self.rank not in (asking, answering):
            return 0.0
        token, times = torch.zeros(1), []
        peer = answering if self.rank == asking else asking
        with _Named(flow.name):
            for _ in range(NUM_PINGS):
                start = monotonic()
                if self.rank == asking:
                    self.transport.send(token, peer, PING).wait(self.timeout_s)
                self.transport.recv(token, peer, PING).wait(self.timeout_s)
                times.append(monotonic() - start)
                if self.rank == answering:
                    self.transport.send(token, peer, PING).wait(self.timeout_s)
        return median(times) if self.rank == asking else 0.0

    def stream(self, flows: Sequence[Flow]) -> dict[Flow, float]:
        """Bytes a second of each flow, when all of them run at the same time."""
        received: list[tuple[int, float]] = []

        def receive(number: int, peer: int, length: Length) -> None:
            rate = receive_stream(self.transport, peer, STREAM, length, self.timeout_s)
            received.append((number, rate))

        ends: list[tuple[str, Callable[[], None]]] = []
        for number, flow in enumerate(flows):
            length = INSIDE if flow.mode is Mode.INTRA_NODE else BETWEEN
            for src, dst in flow.lanes:
                if self.rank == src:
                    send = partial(send_stream, self.transport, dst, STREAM, length)
                    ends.append((flow.name, partial(send, self.timeout_s)))
                if self.rank == dst:
                    ends.append((flow.name, partial(receive, number, src, length)))
        _all_at_once(ends)
        own = [sum(rate for flow, rate in received if flow == k) for k in range(len(flows))]
        rates = self.sum_of(own, ", ".join(flow.name for flow in flows[:2]))
        return dict(zip(flows, rates, strict=True))


@dataclass(frozen=True)
class _Named:
    """Inside, an error of the transport gets the link that it concerns."""

    what: str

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, TransportError):
            kind = PeerTimeout if isinstance(error, PeerTimeout) else TransportError
            raise kind(f"measuring the links ({self.what}): {error}") from error


def _all_at_once(ends: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Runs each on a thread of its own; the first error is raised when all have ended."""
    errors: list[Exception] = []

    def run(name: str, end: Callable[[], None]) -> None:
        try:
            with _Named(name):
                end()
        except Exception as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run, args=each, name="ddp-probe") for each in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


if __name__ == "__main__":
    from ddp.probe_command import main

    main()
