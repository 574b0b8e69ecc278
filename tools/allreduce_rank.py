"""What each rank of the all-reduce benchmark runs: the collectives in turn, in one process.

`main` is called by the agent with a rank's argument and reports through the agent.
"""

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from ddp.algorithms import find_algorithm
from ddp.executor import Collective, make_collective
from ddp.fabric import Fabric
from ddp.membership import Membership
from ddp.plan import choose_segments
from jobs.argument import RankArgument
from jobs.events import EVENTS_FD
from jobs.rendezvous import rendezvous

SIZE_BYTES = 16 * 2**20
ROUNDS, WARMUP_ROUNDS = 10, 2
ALGORITHMS = ("native", "ring", "hierarchical")
TIMEOUT_S = 60.0


def main(argument: dict[str, Any]) -> None:
    told = RankArgument.model_validate_json(json.dumps(argument))
    torch.set_num_threads(told.threads)
    with rendezvous(told):
        fabric = Fabric(tuple(told.node_of))
        group = Membership(None, TIMEOUT_S).connect()
        collectives = {name: _collective(name, told.rank, fabric, group) for name in ALGORITHMS}
        times_s, num_wrong = _measure(collectives, told.rank, told.world_size)
        ranks: list[Any] = [None] * told.world_size
        dist.all_gather_object(ranks, {"times_s": times_s, "num_wrong": num_wrong})
        if told.rank == 0:
            line = json.dumps({"kind": "result", "ranks": ranks}).encode() + b"\n"
            os.write(int(os.environ[EVENTS_FD]), line)
        dist.barrier()
        group.close()


def _collective(name: str, rank: int, fabric: Fabric, group: Any) -> Collective:
    build = find_algorithm(name).build
    schedule = build(fabric, "contiguous", 0) if build else None
    return make_collective(name, schedule, rank, fabric, group, TIMEOUT_S)


def _measure(
    collectives: dict[str, Collective], rank: int, world_size: int
) -> tuple[dict[str, list[float]], int]:
    """Seconds of each counted round by algorithm, and how many sums were not the exact integers."""
    own = torch.arange(SIZE_BYTES // 4, dtype=torch.float32).remainder_(1000).add_(rank)
    expected = own.sub(rank).mul_(world_size).add_(sum(range(world_size)))
    times_s: dict[str, list[float]] = {name: [] for name in collectives}
    num_wrong = 0
    buffer = torch.empty_like(own)
    for number in range(WARMUP_ROUNDS + ROUNDS):
        for name, collective in collectives.items():
            buffer.copy_(own)
            dist.barrier()
            start_s = time.monotonic()
            collective.all_reduce(buffer, choose_segments(name, SIZE_BYTES), bucket=0)
            took_s = time.monotonic() - start_s
            num_wrong += not torch.equal(buffer, expected)
            if number >= WARMUP_ROUNDS:
                times_s[name].append(took_s)
    return times_s, num_wrong
