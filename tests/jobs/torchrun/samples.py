"""Ranks as they say who they are."""

from dataclasses import replace
from typing import Any

from jobs.spec import load_job
from jobs.torchrun.environment import Seat
from jobs.torchrun.facts import RankFacts

MACHINE: dict[str, Any] = {
    "kernel": "6.1",
    "boot_id": "boot-0",
    "cores": 8,
    "memory_bytes": 1 << 30,
    "python": "3.11.7",
    "congestion_control": None,
}
VERSIONS: dict[str, str | None] = {
    "ddplab": "1.0",
    "python": "3.11.7",
    "torch": "2.13.0",
    "kernel": "6.1",
}


def facts(rank: int, node: int, local_rank: int, **changes: Any) -> RankFacts:
    """A rank of two on each of two machines, started by torchrun."""
    usual = RankFacts(
        rank=rank,
        local_rank=local_rank,
        local_world_size=2,
        node=node,
        nnodes=2,
        place=f"boot=boot-{node} network=1",
        host=f"host{node}",
        interface="eth1",
        address=f"10.0.0.{node + 1}",
        loopback=False,
        nics=f"eth1 10.0.0.{node + 1}, lo 127.0.0.1",
        machine={**MACHINE, "boot_id": f"boot-{node}"},
        versions=VERSIONS,
        threads_asked=1,
        job=load_job("hier").model_dump(mode="json"),
    )
    return replace(usual, **changes)


def four(**changes: Any) -> list[RankFacts]:
    """Two machines with two ranks each."""
    return [facts(rank, rank // 2, rank % 2, **changes) for rank in range(4)]


def a_seat(rank: int, world_size: int = 4, **changes: Any) -> Seat:
    usual = Seat("by hand", rank, world_size, None, None, None, None, "10.0.0.1", 29500, None)
    return replace(usual, **changes)
