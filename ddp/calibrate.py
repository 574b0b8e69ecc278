"""What a dependent stage and a byte inside a node cost on this fabric, measured before a run.

Owns three short measurements, made with the executor that a run uses, all ranks at once as in a
run, on sizes of its own. Prices nothing (cost).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import monotonic

import torch

from ddp.executor import ScheduledCollective
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer
from ddp.transport import Transport

SMALL_NUMEL = 16  # float32: small enough to cost no bandwidth
LARGE_NUMEL = 389_119  # about 1.5 MiB, prime, no bucket's size
SMALL_HOPS, LARGE_HOPS = 24, 4
REPEATS = 5
TRIAL_BYTES, TRIALS = 400_000, 3
FAST_INSIDE_BYTES_PER_S, SLOW_INSIDE_BYTES_PER_S = 50e6, 2.5e6
"""Below the one, a measurement takes so long that it is not repeated; below the other, it is left
out: the inside of a node is then a slow link like any other."""


@dataclass(frozen=True)
class Calibration:
    """The same on every rank. None where there is nothing to measure: one node, or lone ranks.

    alpha: seconds that a stage takes beyond its bytes, when it waits for the one before it. The
    rate is None also where a node's inside carries less than SLOW_INSIDE_BYTES_PER_S: then its
    bytes alone decide, and whoever limits it knows the rate.
    """

    alpha_inter_s: float | None
    alpha_intra_s: float | None
    intra_bytes_per_s: float | None


def calibrate(
    transport: Transport, rank: int, fabric: Fabric, timeout_s: float = 10.0
) -> Calibration:
    """Measure; every rank of `fabric` must call this at the same point. A few seconds at
    most where a node's inside is slow, else well under one. Raises TransportError."""

    def stage_s(hop: Stage, numel: int, hops: int, repeats: int = REPEATS) -> float:
        schedule = Schedule(fabric.num_ranks, num_shards, "calibration", _repeat(hop, hops))
        collective = ScheduledCollective(schedule, rank, fabric, transport, timeout_s)
        (buffer,) = transport.allocate([(num_shards * numel, torch.float32)])
        seconds = []
        for _ in range(repeats):
            start = monotonic()
            collective.all_reduce(buffer, 1, 0)
            seconds.append((monotonic() - start) / hops)
        return median(seconds)

    num_shards = max(map(len, fabric.groups))
    across, inside = tuple(_across(fabric)), tuple(_inside(fabric))
    trial_numel = TRIAL_BYTES // 4 // num_shards
    values = [
        stage_s(across, SMALL_NUMEL, SMALL_HOPS) if across else 0.0,
        stage_s(inside, SMALL_NUMEL, SMALL_HOPS) if inside else 0.0,
        stage_s(inside, trial_numel, 1, TRIALS) if inside else 0.0,
    ]
    alpha_inter_s, alpha_intra_s, trial_s = _share(values, transport, rank, fabric, timeout_s)
    rate = None
    if inside and trial_s < TRIAL_BYTES / SLOW_INSIDE_BYTES_PER_S:
        repeats = REPEATS if trial_s < TRIAL_BYTES / FAST_INSIDE_BYTES_PER_S else 1
        large_s = max(stage_s(inside, LARGE_NUMEL, LARGE_HOPS, repeats) - alpha_intra_s, 1e-9)
        own = num_shards * LARGE_NUMEL * 4 / large_s
        (rate,) = _share([own], transport, rank, fabric, timeout_s)
    return Calibration(alpha_inter_s if across else None, alpha_intra_s if inside else None, rate)


def _repeat(hop: Stage, hops: int) -> Callable[[], Iterator[Stage]]:
    return lambda: (hop for _ in range(hops))


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
