"""What one rank of a bench does: `main`, called by the agent in a fresh process.

Owns the turns, their clock and the check of every sum. What a contender is, is `ways`' matter.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp.calibrate import Calibration, Timed, calibrate, num_stages, time_algorithms
from ddp.fabric import Fabric
from ddp.fixed import in_a_row
from ddp.transport.scratch import zeros
from jobs.argument import RankArgument
from jobs.bench.asked import BASE, DTYPES, BenchArgument, BenchSpec, Contender
from jobs.bench.integers import Pattern
from jobs.bench.memory import MemoryPass
from jobs.bench.ways import Place, Way, limit_s, open_place, ways_of
from jobs.events import Events
from jobs.predict import priced_fabric
from jobs.ranklinks import with_links
from jobs.rendezvous import rendezvous
from jobs.rounds.order import turn_order
from jobs.spec import node_of
from jobs.worker import failure_told

TIMED_S = 0.1
"""For about so long, times the rounds, each algorithm is timed before the first, in one size."""
Buffers = list[Tensor]
Allocate = Callable[[Sequence[tuple[int, torch.dtype]]], list[Tensor]]


def main(argument: dict[str, Any]) -> None:
    """Runs one rank. A failure is told in one message, and its exit status is 1."""
    events = Events.from_environment()
    with failure_told(events):
        run_rank(BenchArgument.model_validate_json(json.dumps(argument)), events)


def run_rank(told: BenchArgument, events: Events) -> None:
    """The whole life of a rank. Raises JobError or DdpError where a person can do something."""
    torch.set_num_threads(told.rank.threads)
    with rendezvous(told.rank), ExitStack() as stack:
        rank = with_links(told.rank)
        places, calibrations = _places(rank, told.bench, stack)
        events.phase("start", 1, 1)
        entries = _entries(told.bench, places)
        _time_algorithms(told.bench, entries, places, calibrations)
        if rank.rank == 0:
            events.prediction(_told(rank, told.bench, entries, calibrations))
        result = Turns(told.bench, entries, rank, events).take()
        events.finished_with(result)
        dist.barrier()


def _places(
    told: RankArgument, bench: BenchSpec, stack: ExitStack
) -> tuple[dict[str, Place], dict[str, Calibration]]:
    own = Fabric(tuple(told.node_of))
    places: dict[str, Place] = {}
    calibrations: dict[str, Calibration] = {}
    for name in dict.fromkeys(each.placement for each in bench.contenders):
        nodes = node_of(name, told.nnodes, told.nproc_per_node)
        timeout_s = told.job.ddp.timeout_s
        rank, fabric, group = open_place(
            told.rank, own, nodes, timeout_s, shares_memory=told.shared_memory
        )
        stack.callback(group.close)
        found = calibrate(group.transport(), rank, fabric, timeout_s)
        priced = priced_fabric(fabric.node_of, told.links, found)
        places[name] = Place(rank, fabric, priced, group, timeout_s)
        calibrations[name] = found
    return places, calibrations


def _time_algorithms(
    bench: BenchSpec,
    entries: "list[list[Entry]]",
    places: dict[str, Place],
    calibrations: dict[str, Calibration],
) -> None:
    """Adds to each placement's calibration what the ways that are used there cost."""
    for name, place in places.items():
        ways = {
            entry.way.name: entry.way
            for row in entries
            for who, entry in zip(bench.contenders, row, strict=True)
            if who.placement == name
        }
        timed = {
            each: Timed(way.collective, num_stages(way.schedule, place.fabric.num_ranks))
            for each, way in ways.items()
        }
        found = time_algorithms(
            place.group.transport(),
            place.rank,
            place.fabric,
            timed,
            place.begin,
            place.timeout_s,
            bench.rounds * TIMED_S,
        )
        calibrations[name] = replace(calibrations[name], algorithms=found)


@dataclass(frozen=True)
class Entry:
    """A contender with a size: what reduces it, and the buffers that it reduces."""

    size_bytes: int
    way: Way
    buffers: Buffers
    pattern: Pattern


def _entries(bench: BenchSpec, places: dict[str, Place]) -> list[list[Entry]]:
    """By size, then by contender."""
    ways = [ways_of(each, places[each.placement], bench.sizes_bytes) for each in bench.contenders]
    shared = {name: _buffers(bench, place.group.allocate_all) for name, place in places.items()}
    ordinary = _buffers(bench, zeros)  # as torch's own DDP has them
    patterns = {
        name: Pattern.of(bench.dtype, place.rank, place.fabric.num_ranks)
        for name, place in places.items()
    }

    def entry(who: Contender, own: dict[int, Way], size: int) -> Entry:
        buffers = ordinary if who.algorithm == BASE else shared[who.placement]
        return Entry(size, own[size], buffers[size], patterns[who.placement])

    return [
        [entry(who, own, size) for who, own in zip(bench.contenders, ways, strict=True)]
        for size in bench.sizes_bytes
    ]


def _buffers(bench: BenchSpec, allocate: Allocate) -> dict[int, Buffers]:
    """As many of each size as a turn reduces."""
    dtype: torch.dtype = getattr(torch, bench.dtype)
    rows = [
        (size // dtype.itemsize, dtype) for size in bench.sizes_bytes for _ in range(in_a_row(size))
    ]
    made = iter(allocate(rows))
    return {size: [next(made) for _ in range(in_a_row(size))] for size in bench.sizes_bytes}


def _told(
    told: RankArgument,
    bench: BenchSpec,
    entries: Sequence[Sequence[Entry]],
    calibrations: dict[str, Calibration],
) -> dict[str, Any]:
    """What is known before the first round, for bench.json; by size, then by contender."""
    item_bytes = DTYPES[bench.dtype].item_bytes

    def about(who: Contender, entry: Entry) -> dict[str, Any]:
        size, way = entry.size_bytes, entry.way
        cost = calibrations[who.placement].algorithms.get(way.name)
        return {
            "goes_through": way.algorithm,
            "segments": way.segments,
            "predicted_s": way.predicted_s(size, cost),
            "sent_bytes": way.sent_bytes(size, item_bytes),
            "limit_s": limit_s(way.place.priced, size),
        }

    return {
        "links": [node.model_dump() for node in told.links] if told.links else None,
        "calibration": {name: asdict(each) for name, each in calibrations.items()},
        "entries": [
            [about(who, entry) for who, entry in zip(bench.contenders, row, strict=True)]
            for row in entries
        ],
    }


class Turns:
    """All rounds of one rank."""

    def __init__(
        self,
        bench: BenchSpec,
        entries: Sequence[Sequence[Entry]],
        told: RankArgument,
        events: Events,
    ) -> None:
        self._bench, self._entries, self._told, self._events = bench, entries, told, events
        self._num_done = 0
        place = entries[0][0].way.place
        alone = place.fabric.num_nodes == 1 and place.fabric.num_ranks > 1
        dtype = getattr(torch, bench.dtype)
        self._memory = MemoryPass(place, max(bench.sizes_bytes), dtype) if alone else None

    def take(self) -> dict[str, Any]:
        """What this rank found, by size, then by contender."""
        bench = self._bench
        seconds: list[list[list[float]]] = [[[] for _ in row] for row in self._entries]
        wrong = [[0 for _ in row] for row in self._entries]
        sent: list[list[int | None]] = [[None for _ in row] for row in self._entries]
        memory: list[list[tuple[float, float]]] = [[] for _ in self._entries]
        for number in range(bench.warmup_rounds + bench.rounds):
            for size, row in enumerate(self._entries):
                for each in turn_order(number, len(row)):
                    took_s, num_wrong, sent[size][each] = _turn(row[each])
                    wrong[size][each] += num_wrong
                    if number >= bench.warmup_rounds:
                        seconds[size][each].append(took_s)
                    self._num_done += 1
                size_bytes = bench.sizes_bytes[size]
                # of small buffers several follow one another, and messages decide
                if self._memory and number >= bench.warmup_rounds and in_a_row(size_bytes) == 1:
                    memory[size].append(self._memory.take(size_bytes))
            # not after each turn: whoever hears it needs a core, on which the next one begins
            self._events.phase("turn", self._num_done, bench.num_turns)
        return {
            "node": self._told.node,
            "seconds": seconds,
            "wrong": wrong,
            "sent": sent,
            "memory": memory,
        }


def _turn(entry: Entry) -> tuple[float, int, int | None]:
    """Seconds of one all-reduce, wrong elements, and bytes that this rank sent to other nodes."""
    way, sent = entry.way, None
    for buffer in entry.buffers:
        entry.pattern.fill(buffer)
    with way.place.together():  # all have filled their buffers, and nobody computes meanwhile
        start_s = monotonic()
        for buffer in entry.buffers:
            sent = way.collective.all_reduce(buffer, way.segments, 0).inter_node_bytes
        took_s = (monotonic() - start_s) / len(entry.buffers)
    return took_s, sum(map(entry.pattern.num_wrong, entry.buffers)), sent
