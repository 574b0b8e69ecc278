"""Steps that the network holds up: `hierarchical` as the wrapper has it by default, against stock
DDP with each of the bucket sizes that people give it. Owns the labs, the variants and the figure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from ddp import Fabric
from jobs.argument import RankArgument
from jobs.rendezvous import rendezvous
from tools.bench_ddp.figures import Figure, ratios, slowest
from tools.bench_ddp.ranks import report, take_turns
from tools.bench_ddp.variants import MIB, Variant

RATE = "200mbit"
ROUNDS = 10
CAPS: tuple[float | None, ...] = (None, 1, 4, 25)
"""bucket_cap_mb of stock DDP, MiB; None is torch's own default."""
_MODEL: dict[str, Any] = {
    "layers": 32,
    "layer_bytes": MIB // 2,
    "forward_ms": 5.0,
    "backward_ms": 10.0,
}
OURS = Variant("hierarchical", "hierarchical", bucket_mb=None, **_MODEL)
STOCK = tuple(Variant(f"stock, {cap}", None, bucket_mb=cap, **_MODEL) for cap in CAPS)


@dataclass(frozen=True)
class Shape:
    """A cluster of the catalog; how many times as fast we must be there, and want to be."""

    cluster: str
    floor: float
    target: float


SHAPES = (Shape("2x2", 1.40, 1.48), Shape("2x4", 1.60, 1.72))


def main(argument: dict[str, Any]) -> None:
    """One rank."""
    told = RankArgument.model_validate_json(json.dumps(argument))
    torch.set_num_threads(told.threads)
    with rendezvous(told):
        report(told, take_turns((OURS, *STOCK), Fabric(tuple(told.node_of)), ROUNDS))


def figure(shape: Shape, told: Sequence[Mapping[str, Any]]) -> Figure:
    """From what each rank told: against the stock variant whose median step is the shortest."""

    def steps_s(variant: str) -> list[float]:
        return slowest([[step["step_s"] for step in rank[variant]["steps"]] for rank in told])

    stock = {each.name: steps_s(each.name) for each in STOCK}
    best = min(stock, key=lambda name: median(stock[name]))
    cap = best.partition(", ")[2]
    return Figure(
        f"`hierarchical` against the best of stock DDP (bucket_cap_mb={cap}) on {shape.cluster} at "
        f"{RATE}: times as fast",
        ratios(stock[best], steps_s(OURS.name)),
        shape.floor,
        shape.target,
        more_is_better=True,
        unit=" x",
    )
