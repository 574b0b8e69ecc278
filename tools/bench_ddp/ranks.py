"""What each rank of `make bench-ddp` runs: variants of one training, a step each in turn.

All are set up in one set of ranks, so that whatever disturbs the machine disturbs them alike.
`main` is called by the agent with a rank's argument and reports through the agent.
"""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from ddp import Fabric
from jobs.argument import RankArgument
from jobs.events import EVENTS_FD
from jobs.rendezvous import rendezvous
from tools.bench_ddp.checks import checks_cost
from tools.bench_ddp.variants import MIB, Variant, set_up

WARMUP_STEPS = 2
"""In the first of them wrappers may make their buckets again."""

SPEED_ROUNDS, DEEP_ROUNDS = 15, 6
_SPEED: dict[str, Any] = {
    "layers": 16,
    "layer_bytes": MIB // 2,
    "bucket_mb": 1.0,
    "forward_ms": 30.0,
}
_AS_NATIVE, _AS_HIERARCHICAL, _SHORT = 265.0, 175.0, 20.0
"""Backward of about the time that 8 MiB take at 400mbit between two nodes of two ranks; and far
less than that."""
SPEED = (
    Variant("stock", None, backward_ms=_AS_NATIVE, **_SPEED),
    Variant("native", "native", backward_ms=_AS_NATIVE, **_SPEED),
    Variant("overlap", "hierarchical", backward_ms=_AS_HIERARCHICAL, **_SPEED),
    Variant(
        "after", "hierarchical", backward_ms=_AS_HIERARCHICAL, more={"overlap": False}, **_SPEED
    ),
    Variant("stock, short", None, backward_ms=_SHORT, **_SPEED),
    Variant("hierarchical, short", "hierarchical", backward_ms=_SHORT, **_SPEED),
)
_DEEP: dict[str, Any] = {
    "layers": 320,
    "layer_bytes": 4096,
    "bucket_mb": 25.0,
    "forward_ms": 20.0,
    "backward_ms": 40.0,
}
DEEP = (
    Variant("bucketed", "hierarchical", **_DEEP),
    Variant("per parameter", "hierarchical", more={"per_parameter": True}, **_DEEP),
)


def main(argument: dict[str, Any]) -> None:
    told = RankArgument.model_validate_json(json.dumps(argument))
    torch.set_num_threads(told.threads)
    with rendezvous(told):
        fabric = Fabric(tuple(told.node_of))
        speed = take_turns(SPEED, fabric, SPEED_ROUNDS)
        deep = take_turns(DEEP, fabric, DEEP_ROUNDS)
        report(told, {"speed": speed, "deep": deep, "checks": checks_cost(fabric)})


def report(told: RankArgument, found: Any) -> None:
    """Tell the launcher what each rank found, by rank."""
    ranks: list[Any] = [None] * told.world_size
    dist.all_gather_object(ranks, found)
    if told.rank == 0:
        line = json.dumps({"kind": "result", "ranks": ranks}).encode() + b"\n"
        os.write(int(os.environ[EVENTS_FD]), line)
    dist.barrier()


def take_turns(
    variants: Sequence[Variant], fabric: Fabric, num_rounds: int
) -> dict[str, dict[str, Any]]:
    """The counted steps of each variant, and the bytes of its buckets."""
    with ExitStack() as stack:
        ready = [(each, stack.enter_context(set_up(each, fabric))) for each in variants]
        steps: dict[str, list[Any]] = {each.name: [] for each in variants}
        for number in range(-WARMUP_STEPS, num_rounds):
            for variant, trained in ready if number % 2 else reversed(ready):
                dist.barrier()
                times = trained.step()
                if number >= 0:
                    steps[variant.name].append(asdict(times))
        return {
            variant.name: {"steps": steps[variant.name], "bucket_bytes": trained.bucket_bytes()}
            for variant, trained in ready
        }
