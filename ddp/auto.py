"""auto: measures, before a run, what `ddp.choice` chooses from; and reduces as it has chosen.

Owns those measurements: candidates timed against one another where that is quick, and the links
and fixed costs by which the rest is priced. All ranks end with the same figures: a time is that of
the slowest rank, links and costs are those that rank 0 has.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep

import torch
import torch.distributed as dist
from torch import Tensor

from ddp.algorithms import AUTO
from ddp.calibrate import calibrate
from ddp.choice import NATIVE, Choice, Chooser, Timing, candidates, timed_sizes
from ddp.errors import PeerTimeout, TransportError
from ddp.executor import Collective, make_collective
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.fixed import PAUSE_S, in_a_row
from ddp.membership import PrivateGroup
from ddp.plan import choose_segments
from ddp.probe import ProbeTable, probe_links
from ddp.probe_rounds import Mode
from ddp.timing import Traffic
from ddp.transport.p2p import P2PTransport, translate

LEAST_ROUNDS, MOST_ROUNDS = 4, 15
MEETS = "hierarchical"  # serves every fabric
MOST_S = 0.6
"""For the rounds at one size, pauses too; what takes longer is priced."""
TRIALS, FAR = 2, 3.0
"""What takes so many times as long as the fastest in both trials is not tried again at a size."""


class AutoCollective:
    """Reduces each buffer as `chooser` says, which is also what a plan says of its bucket."""

    name = AUTO

    def __init__(self, chooser: Chooser, make: Callable[[str], Collective]) -> None:
        self._chooser = chooser
        self._make = make
        self._made: dict[str, Collective] = {}

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        algorithm = self._chooser.of(buffer.nbytes).algorithm
        if algorithm not in self._made:
            self._made[algorithm] = self._make(algorithm)
        return self._made[algorithm].all_reduce(buffer, segments, bucket)


def choose(
    group: PrivateGroup, fabric: Fabric, sizes: Iterable[int], timeout_s: float = 60.0
) -> dict[int, Choice]:
    """What buffers of these bytes go through; every rank must call it, and gets the same."""
    sizes = list(sizes)
    chooser = measure(group, fabric, max(sizes), timeout_s)
    return {num_bytes: chooser.of(num_bytes) for num_bytes in sizes}


def measure(group: PrivateGroup, fabric: Fabric, most_bytes: int, timeout_s: float) -> Chooser:
    """What to choose from, for buffers of up to `most_bytes`. Every rank must call it.

    Two or three seconds; as many again where links must be known and `fabric` does not tell them.
    Raises TransportError.
    """
    if group.size == 1:
        return Chooser(Fabric(fabric.node_of))
    with _named("choosing an algorithm"):
        timings = _timings(group, fabric, most_bytes, timeout_s)
        chooser = Chooser(Fabric(fabric.node_of), timings)
        if chooser.must_price(most_bytes):
            chooser = replace(chooser, fabric=_priced(group, fabric, timeout_s))
    return chooser


def _timings(
    group: PrivateGroup, fabric: Fabric, most_bytes: int, timeout_s: float
) -> tuple[Timing, ...]:
    collectives = {
        name: make_collective(name, schedule, group.rank, fabric, group, timeout_s)
        for name, schedule in {**candidates(fabric), NATIVE: None}.items()
    }
    pause_s = PAUSE_S if fabric.num_nodes > 1 else 0.0
    sizes = list(timed_sizes(most_bytes))
    whole = group.allocate(sizes[-1] // 4, torch.float32).zero_()
    rows = {num_bytes: whole[: num_bytes // 4] for num_bytes in sizes}
    word, together = group.allocate(1, torch.float32), collectives[MEETS]

    def rounds(
        names: Sequence[str], num_bytes: int, num_rounds: int, length: int = 1
    ) -> list[tuple[float, ...]]:
        """By name and round, as long as the slowest rank took: the mean of `length` in a row. They
        take turns."""
        own = []
        for name in [*names] * num_rounds:
            segments = choose_segments(name, num_bytes, fabric.num_nodes)
            sleep(pause_s)
            rows[num_bytes].zero_()  # each rank has just written its own, as gradients are
            for _ in range(2):  # all begin together, nearer than after a barrier of the backend's
                together.all_reduce(word, 1, 0)
            start = monotonic()
            for _ in range(length):
                collectives[name].all_reduce(rows[num_bytes], segments, 0)
            own.append((monotonic() - start) / length)
        slowest = torch.tensor(own, dtype=torch.float64)
        _all_reduce_max(group, slowest, timeout_s)
        return [tuple(each) for each in slowest.view(num_rounds, len(names)).T.tolist()]

    rounds([*collectives], sizes[0], 1)  # connects
    timings: list[Timing] = []
    for num_bytes in sizes:
        tried = dict(zip(collectives, rounds([*collectives], num_bytes, TRIALS), strict=True))
        best_s = min(map(min, tried.values()))
        near = {name: min(each) for name, each in tried.items() if min(each) <= FAR * best_s}
        sum_s, pauses_s = sum(near.values()), pause_s * len(near)
        length = min(in_a_row(num_bytes), int((MOST_S / LEAST_ROUNDS - pauses_s) / sum_s))
        if length < 1:
            break
        num_rounds = min(MOST_ROUNDS, int(MOST_S / (length * sum_s + pauses_s)))
        tried |= dict(zip(near, rounds([*near], num_bytes, num_rounds, length), strict=True))
        timings += [Timing(name, num_bytes, seconds) for name, seconds in tried.items()]
    return tuple(timings)


def _all_reduce_max(group: PrivateGroup, values: Tensor, timeout_s: float) -> None:
    try:
        group.allreduce([values], dist.ReduceOp.MAX, timedelta(seconds=timeout_s)).wait()
    except RuntimeError as exc:
        raise translate(exc) from exc


def _priced(group: PrivateGroup, fabric: Fabric, timeout_s: float) -> Fabric:
    """The fabric with what its links carry and stages cost: rates as given, else as probed."""
    given = torch.tensor([float(bool(fabric.links))])
    group.broadcast_bytes([given])
    links: Sequence[NodeLinks] = fabric.links
    transport = group.transport()
    if not given.item():
        alone = fabric.num_nodes == 1
        messages = P2PTransport(group)  # its two streams at once take two threads
        table = None if alone else probe_links(messages, group.rank, fabric, timeout_s)
        links = links_of(table, max(fabric.node_of) + 1)
    costs = calibrate(transport, group.rank, fabric, timeout_s)
    figures = torch.zeros(max(fabric.node_of) + 1, 3, dtype=torch.float64)
    for node, row in enumerate(links[: len(figures)]):
        inside = costs.intra_bytes_per_s or row.intra.bytes_per_s
        figures[node] = torch.tensor([row.nic_out.bytes_per_s, row.nic_in.bytes_per_s, inside])
    group.broadcast_bytes([figures])
    inter_s, intra_s = costs.alpha_inter_s or 0.0, costs.alpha_intra_s or 0.0
    priced = (
        NodeLinks(Link(inter_s, out), Link(inter_s, into), Link(intra_s, inside))
        for out, into, inside in figures.tolist()
    )
    return Fabric(fabric.node_of, tuple(priced))


def links_of(table: ProbeTable | None, num_nodes: int) -> list[NodeLinks]:
    """What a probe says of each node: its best pair, both ways at once where that was measured.

    No limit where nothing was.
    """
    rates: dict[tuple[int, str, Mode], float] = {}
    for link in table.links if table else ():
        for key in ((link.src, "out", link.mode), (link.dst, "in", link.mode)):
            rates[key] = max(rates.get(key, 0.0), link.measured_bytes_per_second)
    return [
        NodeLinks(
            _rate(rates, node, "out", (Mode.BOTH_WAYS, Mode.ONE_WAY)),
            _rate(rates, node, "in", (Mode.BOTH_WAYS, Mode.ONE_WAY)),
            _rate(rates, node, "out", (Mode.INTRA_NODE,)),
        )
        for node in range(num_nodes)
    ]


def _rate(
    rates: Mapping[tuple[int, str, Mode], float], node: int, end: str, modes: Iterable[Mode]
) -> Link:
    found = (rates[node, end, mode] for mode in modes if rates.get((node, end, mode)))
    return Link(0.0, next(found, math.inf))


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Inside, an error of the transport says what was going on."""
    try:
        yield
    except TransportError as exc:
        kind = PeerTimeout if isinstance(exc, PeerTimeout) else TransportError
        raise kind(f"{what}: {exc}") from exc
