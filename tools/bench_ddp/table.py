"""From what the ranks of `make bench-ddp` told to the figures of its table. Pure.

`told` is by rank; of each variant it has the counted steps and the bytes of the buckets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.bench_ddp.figures import (
    Figure,
    overlap_efficiency,
    pipeline_bound_s,
    ratios,
    slowest,
)

Told = Sequence[Mapping[str, Any]]
HEAD = "| figure | floor | target | measured: median (p10 - p90) | |\n|---|---|---|---|---|"
STEP_MS = 50.0


def speed(told: Told) -> list[Figure]:
    """The figures that come from step times."""
    require_equal_buckets(told, "native", "stock")
    require_equal_buckets(told, "hierarchical, short", "stock, short")

    def steps_s(scene: str, variant: str) -> list[float]:
        return slowest(
            [[step["step_s"] for step in steps] for steps in _steps(told, scene, variant)]
        )

    return [
        Figure(
            "`native` against stock DDP: step time",
            ratios(steps_s("speed", "native"), steps_s("speed", "stock")),
            1.05,
            1.02,
            unit=" x",
        ),
        Figure(
            "overlap efficiency, `hierarchical`",
            efficiencies(told),
            0.85,
            0.95,
            more_is_better=True,
        ),
        Figure(
            f"{num_tensors(told)} tensors: a bucket each against bucketed",
            ratios(steps_s("deep", "per parameter"), steps_s("deep", "bucketed")),
            3,
            5,
            more_is_better=True,
            unit=" x",
        ),
        Figure(
            "`hierarchical` against stock DDP, short backward: times as fast",
            ratios(steps_s("speed", "stock, short"), steps_s("speed", "hierarchical, short")),
            more_is_better=True,
            unit=" x",
        ),
    ]


def memory(ours: Sequence[int], stock: Sequence[int]) -> Figure:
    """Bytes of each rank at most, over what it held before its model was built."""
    name = f"peak memory of a rank against stock DDP ({max(stock) / 2**20:.0f} MiB)"
    return Figure(name, ratios(ours, stock), 1.15, 1.05, unit=" x")


def checks(told: Told) -> list[Figure]:
    """What checks add to a step, in percent of it, as the slowest rank saw both."""
    name = f"fingerprint and checks that are always on, of a {STEP_MS:.0f} ms step"
    return [
        Figure(name, _added(told, "paced"), 2, 1, unit=" %"),
        Figure(f"{name} that computes all the time", _added(told, "busy"), unit=" %"),
    ]


def _added(told: Told, scene: str) -> list[float]:
    ranks = [rank["checks"][scene] for rank in told if rank["checks"][scene]]
    with_s, without_s = (slowest([[pair[n] for pair in rank] for rank in ranks]) for n in (0, 1))
    return [(ratio - 1) * 100 for ratio in ratios(with_s, without_s)]


def efficiencies(told: Told) -> list[float]:
    """Of each round: which part of what overlap could hide it did hide, on the slowest rank."""
    after, overlap = _steps(told, "speed", "after"), _steps(told, "speed", "overlap")
    found = []
    for number, overlapped_s in enumerate(slowest([[s["step_s"] for s in r] for r in overlap])):
        rank = max(range(len(after)), key=lambda r: after[r][number]["step_s"])
        sequential = after[rank][number]
        bound_s = pipeline_bound_s(
            sequential["step_s"] - sequential["call_s"],
            sequential["backward_s"],
            overlap[rank][number]["first_ready_s"],
            sequential["buckets_s"],
        )
        found.append(overlap_efficiency(sequential["step_s"], overlapped_s, bound_s))
    return found


def num_tensors(told: Told) -> int:
    """As many as the deep model has: each has a bucket of its own."""
    return len(told[0]["deep"]["per parameter"]["bucket_bytes"])


def require_equal_buckets(told: Told, ours: str, stock: str) -> None:
    """Raises ValueError where the two were not the same work."""
    found = [told[0]["speed"][name]["bucket_bytes"] for name in (ours, stock)]
    if found[0] != found[1]:
        raise ValueError(f"{ours} has buckets of {found[0]} bytes, {stock} of {found[1]}")


def _steps(told: Told, scene: str, variant: str) -> list[list[Any]]:
    return [rank[scene][variant]["steps"] for rank in told]
