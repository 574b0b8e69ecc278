"""What a dependent stage and a byte inside a node cost on this fabric, measured before a run.

Owns short measurements, made with the executor that a run uses, all ranks at once as in a run, on
sizes of its own: of stages alike, and of the algorithms that the run uses. Prices nothing (cost).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic, sleep

import torch

from ddp.algorithms import is_known, parameter_server_schedule
from ddp.executor import Collective, NoCollective, ScheduledCollective, make_collective
from ddp.fabric import Fabric
from ddp.fixed import IN_A_ROW, LARGE_NUMEL, PAUSE_S, SMALL_NUMEL, SOME_NUMEL, FixedCost
from ddp.membership import PrivateGroup
from ddp.plan import ReductionPlan
from ddp.schedule import Schedule, Stage, Transfer
from ddp.transport import Transport

INSIDE_NUMEL = 4_194_301  # of a rank's buffer, about 16 MiB: more than caches hold
SLOW_NUMEL = 389_119  # of a chunk where the inside is slow, about 1.5 MiB
SMALL_HOPS, LARGE_HOPS = 24, 2
"""Stages in a row. Of the large ones one adds what peers have just written, and one copies that, as
in a reduction: neither is in this core's cache."""
REPEATS = 5
TRIAL_BYTES, TRIALS = 400_000, 3
FAST_INSIDE_BYTES_PER_S, SLOW_INSIDE_BYTES_PER_S = 50e6, 2.5e6
"""Below the one, a measurement takes so long that it is not repeated; below the other, it is left
out: the inside of a node is then a slow link like any other."""
SLOW_S = 0.01
"""What takes so long for SOME_NUMEL inside a node is not timed with LARGE_NUMEL."""
TRIES, MOST_ROUNDS, MOST_S = 2, 41, 0.25
"""How often an algorithm is timed, and for about how long at most, in one size, judged by the
shorter of so many tries."""


@dataclass(frozen=True)
class Calibration:
    """The same on every rank. None where there is nothing to measure: one node, or lone ranks.

    alpha: seconds that a stage takes beyond its bytes, when it waits for the one before it. The
    rate is None also where a node's inside carries less than SLOW_INSIDE_BYTES_PER_S: then its
    bytes alone decide, and whoever limits it knows the rate. algorithms: of those that were timed
    themselves, which is better known than from stages that are all alike.
    """

    alpha_inter_s: float | None
    alpha_intra_s: float | None
    intra_bytes_per_s: float | None
    algorithms: Mapping[str, FixedCost] = field(default_factory=dict, hash=False)


def calibrate(
    transport: Transport, rank: int, fabric: Fabric, timeout_s: float = 10.0
) -> Calibration:
    """Measure; every rank of `fabric` must call this at the same point. A few seconds at
    most where a node's inside is slow, else well under one. Raises TransportError."""

    def stage_s(kinds: Sequence[Stage], numel: int, hops: int, repeats: int = REPEATS) -> float:
        stages = _in_turn(kinds, hops)
        schedule = Schedule(fabric.num_ranks, num_shards, "calibration", stages)
        collective = ScheduledCollective(schedule, rank, fabric, transport, timeout_s)
        (buffer,) = transport.allocate([(num_shards * numel, torch.float32)])
        seconds = []
        for _ in range(repeats):
            buffer.zero_()
            together.meet()
            start = monotonic()
            collective.all_reduce(buffer, 1, 0)
            seconds.append((monotonic() - start) / hops)
        return median(seconds) if numel > SMALL_NUMEL else _usual(seconds)

    together = _Together(transport, rank, fabric, timeout_s)
    num_shards = max(map(len, fabric.groups))
    across, inside = tuple(_across(fabric)), tuple(_inside(fabric))
    adding = tuple(transfer._replace(reduce=True) for transfer in inside)
    trial_numel = TRIAL_BYTES // 4 // num_shards
    values = [
        stage_s([across], SMALL_NUMEL, SMALL_HOPS) if across else 0.0,
        stage_s([inside], SMALL_NUMEL, SMALL_HOPS) if inside else 0.0,
        stage_s([inside], trial_numel, 1, TRIALS) if inside else 0.0,
    ]
    alpha_inter_s, alpha_intra_s, trial_s = _share(values, transport, rank, fabric, timeout_s)
    rate = None
    if inside and trial_s < TRIAL_BYTES / SLOW_INSIDE_BYTES_PER_S:
        fast = trial_s < TRIAL_BYTES / FAST_INSIDE_BYTES_PER_S
        numel, repeats = (INSIDE_NUMEL // num_shards, REPEATS) if fast else (SLOW_NUMEL, 1)
        hop_s = stage_s([adding, inside], numel, LARGE_HOPS, repeats)
        large_s = max(hop_s - alpha_intra_s, 1e-9)
        own = num_shards * numel * 4 / large_s
        (rate,) = _share([own], transport, rank, fabric, timeout_s)
    return Calibration(alpha_inter_s if across else None, alpha_intra_s if inside else None, rate)


def calibrate_plan(
    group: PrivateGroup, plan: ReductionPlan, fabric: Fabric, timeout_s: float
) -> Calibration:
    """As `calibrate`, with the algorithms that the plan's buckets go through."""
    transport = group.transport()
    found = calibrate(transport, group.rank, fabric, timeout_s)
    timed = {}
    for name in plan.algorithms:
        if is_known(name) and name != NoCollective.name:  # what a hook sends is not known
            schedule = plan.schedule(name)
            made = make_collective(name, schedule, group.rank, fabric, group, timeout_s)
            timed[name] = Timed(made, num_stages(schedule, fabric.num_ranks))
    costs = time_algorithms(transport, group.rank, fabric, timed, timeout_s=timeout_s)
    return replace(found, algorithms=costs)


@dataclass(frozen=True)
class Timed:
    """An algorithm that is to be timed, and the stages among which its time is shared out."""

    collective: Collective
    num_stages: int


def num_stages(schedule: Schedule | None, num_ranks: int) -> int:
    """Those of a ring where the backend reduces in its own way."""
    return 2 * (num_ranks - 1) if schedule is None else sum(1 for _ in schedule)


def time_algorithms(
    transport: Transport,
    rank: int,
    fabric: Fabric,
    timed: Mapping[str, Timed],
    meet: Callable[[], None] | None = None,
    timeout_s: float = 10.0,
    most_s: float = MOST_S,
) -> dict[str, FixedCost]:
    """By name, the same on every rank, all of which must call this. They take turns, in rows after
    `meet`, which returns on all ranks at about the same moment. Tens of ms each, at most about
    `most_s` in one size. Raises TransportError."""
    sizes = [SMALL_NUMEL, SOME_NUMEL, *([LARGE_NUMEL] if fabric.num_nodes == 1 else [])]
    names = [name for name, each in timed.items() if each.num_stages]
    buffers = {
        size: transport.allocate([(size, torch.float32)] * (1 if size == LARGE_NUMEL else IN_A_ROW))
        for size in sizes
    }
    together = _Together(transport, rank, fabric, timeout_s)
    pause_s = {SOME_NUMEL: PAUSE_S} if fabric.num_nodes > 1 else {}

    def row(turn: tuple[str, int], length: int) -> float:
        """Seconds of one of a row; ranks have just written their buffers, as gradients are."""
        name, size = turn
        reduced = buffers[size][:length]
        sleep(pause_s.get(size, 0.0))
        for buffer in buffers[size]:
            buffer.zero_()
        (meet or together.meet)()
        start = monotonic()
        for buffer in reduced:
            timed[name].collective.all_reduce(buffer, 1, 0)
        return (monotonic() - start) / len(reduced)

    tried: dict[tuple[str, int], float] = {}
    for size in sizes:  # the first of them connects, too
        turns = [(name, size) for name in names]
        if size == LARGE_NUMEL:  # not where a node's inside is a slow link
            turns = [turn for turn in turns if tried[turn[0], SOME_NUMEL] < SLOW_S]
        tries = [together.slowest([row(turn, 1) for turn in turns]) for _ in range(TRIES)]
        tried |= zip(turns, map(min, zip(*tries, strict=True)), strict=True)
    found: dict[tuple[str, int], list[float]] = {turn: [] for turn in tried}
    for number in range(MOST_ROUNDS):
        for turn, trial_s in tried.items():
            whole_s = len(buffers[turn[1]]) * trial_s
            if number == 0 or (number + 1) * (whole_s + pause_s.get(turn[1], 0.0)) < most_s:
                found[turn].append(row(turn, IN_A_ROW if whole_s < most_s else 2))
    return _costs(timed, found, together)


def _costs(
    timed: Mapping[str, Timed],
    found: Mapping[tuple[str, int], Sequence[float]],
    together: "_Together",
) -> dict[str, FixedCost]:
    slowest = iter(together.slowest([s for rows in found.values() for s in rows]))
    usual = {turn: median([next(slowest) for _ in rows]) for turn, rows in found.items()}
    costs = {}
    for name in dict.fromkeys(name for name, _ in found):
        small_s, some_s = _rising(usual[name, SMALL_NUMEL], usual[name, SOME_NUMEL])
        large_s = usual.get((name, LARGE_NUMEL))
        large_s = None if large_s is None else max(large_s, some_s)
        costs[name] = FixedCost(timed[name].num_stages, small_s, some_s, large_s)
    return costs


def _rising(small_s: float, some_s: float) -> tuple[float, float]:
    """More bytes take no less: where they did, both figures are one that was measured twice."""
    return (small_s, some_s) if some_s >= small_s else ((small_s + some_s) / 2,) * 2


def _usual(seconds: Sequence[float]) -> float:
    """The lower quartile: what else a machine does within so short a time only adds."""
    return sorted(seconds)[len(seconds) // 4]


class _Together:
    """What all ranks do and know together, through the star."""

    def __init__(self, transport: Transport, rank: int, fabric: Fabric, timeout_s: float) -> None:
        star = parameter_server_schedule(fabric.num_ranks)
        self._rank, self._num_ranks = rank, fabric.num_ranks
        self._star = ScheduledCollective(star, rank, fabric, transport, timeout_s)
        self._token = torch.zeros(1)

    def meet(self) -> None:
        self._star.all_reduce(self._token, 1, 0)

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """Element by element, the most of any rank."""
        table = torch.zeros(self._num_ranks, len(seconds) + 1, dtype=torch.float64)
        table[self._rank, 1:] = torch.tensor(seconds, dtype=torch.float64)
        self._star.all_reduce(table.view(-1), 1, 0)
        return [float(each) for each in table.amax(0)[1:]]


def _in_turn(kinds: Sequence[Stage], hops: int) -> Callable[[], Iterator[Stage]]:
    return lambda: (kinds[hop % len(kinds)] for hop in range(hops))


def _across(fabric: Fabric) -> Iterator[Transfer]:
    """Every node hands one chunk for each of its ranks to the next node."""
    groups = fabric.groups
    for node, group in enumerate(groups if len(groups) > 1 else ()):
        following = groups[(node + 1) % len(groups)]
        for shard in range(max(map(len, groups))):
            src, dst = group[shard % len(group)], following[shard % len(following)]
            yield Transfer(src, dst, shard, reduce=False)


def _inside(fabric: Fabric) -> Iterator[Transfer]:
    """Every rank hands a chunk to the next rank of its node."""
    for group in fabric.groups:
        for place, rank in enumerate(group if len(group) > 1 else ()):
            yield Transfer(rank, group[(place + 1) % len(group)], place, reduce=False)


def _share(
    values: list[float], transport: Transport, rank: int, fabric: Fabric, timeout_s: float
) -> list[float]:
    """Everybody takes the figures of one rank on the largest node, which measured all of them."""
    root = max(fabric.groups, key=len)[0]
    peers = (peer for peer in range(fabric.num_ranks) if peer != root)
    stage = tuple(Transfer(root, peer, 0, reduce=False) for peer in peers)
    buffer = torch.tensor(values, dtype=torch.float64)
    if stage:
        schedule = Schedule(fabric.num_ranks, 1, "share", lambda: [stage])
        collective = ScheduledCollective(schedule, rank, fabric, transport, timeout_s)
        collective.all_reduce(buffer, 1, 0)
    return [float(value) for value in buffer]
