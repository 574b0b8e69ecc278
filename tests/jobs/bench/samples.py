"""Hand-made benches: what ranks told, with times, bytes and wrong sums as a test says."""

from collections.abc import Sequence
from typing import Any

from ddp.cost import payload_bytes
from ddp.fabric import Fabric
from jobs.bench.asked import BASE, BenchSpec, Contender
from jobs.bench.launcher import Found
from jobs.bench.rows import Row, Shape, rows_of
from jobs.bench.ways import ring_schedule

NATIVE, RING, HIER = (Contender(algorithm=name) for name in (BASE, "ring", "hierarchical"))
AUTO = Contender(algorithm="auto")
MIXED = Contender(algorithm="hierarchical", placement="interleaved")
MIXED_NATIVE = Contender(algorithm=BASE, placement="interleaved")
MS = 1e-3


def bench_spec(
    *contenders: Contender, sizes: Sequence[int] = (4 << 20,), rounds: int = 3
) -> BenchSpec:
    return BenchSpec(
        sizes_bytes=tuple(sizes), contenders=contenders, rounds=rounds, warmup_rounds=1
    )


def found(
    spec: BenchSpec,
    shape: Shape,
    ms: Sequence[Sequence[Sequence[float]]],
    *,
    sent: Sequence[float] | None = None,
    wrong: int = 0,
    limit_ms: float | None = 100.0,
    off: float = 0.0,
    memory_ms: Sequence[float] = (),
) -> Found:
    """`ms[size][contender][round]` of the slowest rank; the others are 1 ms faster. `sent`: of
    each contender, bytes over S of the busiest node, None where its ranks do not tell. `memory_ms`:
    by round, when memory was done on rank 0, which began at 1; every further rank is 1 later."""
    shares = sent or [1.0] * len(spec.contenders)
    entries: list[Any] = []
    for size, row in zip(spec.sizes_bytes, ms, strict=True):
        entries.append(
            [
                {
                    "goes_through": who.algorithm,
                    "segments": 1,
                    "predicted_s": sorted(times)[len(times) // 2] * MS * (1 + off),
                    "sent_bytes": round(size * share),
                    "limit_s": None if limit_ms is None else limit_ms * MS,
                }
                for who, times, share in zip(spec.contenders, row, shares, strict=True)
            ]
        )
    return Found(
        {"links": None, "calibration": {}, "entries": entries},
        [_rank(spec, shape, rank, ms, shares, wrong, memory_ms) for rank in range(shape.num_ranks)],
    )


def _rank(
    spec: BenchSpec,
    shape: Shape,
    rank: int,
    ms: Any,
    shares: Sequence[float],
    wrong: int,
    memory_ms: Sequence[float],
) -> dict[str, Any]:
    last = rank == shape.num_ranks - 1
    ranks = shape.ranks_per_node
    return {
        "node": rank // ranks,
        "seconds": [
            [[(each if last else each - 1) * MS for each in times] for times in row] for row in ms
        ],
        "wrong": [[wrong if last else 0 for _ in row] for row in ms],
        "sent": [
            [
                None if who.algorithm == BASE else round(size * share / ranks)
                for who, share in zip(spec.contenders, shares, strict=True)
            ]
            for size in spec.sizes_bytes
        ],
        "memory": [[((rank + 1) * MS, (rank + each) * MS) for each in memory_ms] for _ in ms],
    }


def rows(spec: BenchSpec, ms: Any, shape: Shape | None = None, **more: Any) -> list[Row]:
    shape = shape or Shape(2, 2)
    return rows_of(spec, shape, found(spec, shape, ms, **more))


def ring_share(placement_nodes: Sequence[int]) -> float:
    """What the busiest node of a ring in rank order sends, over S."""
    fabric, numel = Fabric(tuple(placement_nodes)), 840 * 2
    schedule = ring_schedule(range(fabric.num_ranks))
    return max(payload_bytes(schedule, fabric, numel, 4).values()) / (numel * 4)
