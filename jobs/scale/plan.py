"""What `scale` runs: the sizes, each size's cluster, and each job as it is at that size.

Pure: starts nothing. Whatever cannot be run at every size is refused here, before anything is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from cluster.spec import ClusterSpec
from jobs.errors import JobSpecError
from jobs.spec import JobSpec, compute_scaled, node_of

SCALINGS = ("weak", "strong")
MOST_NODES = 256


@dataclass(frozen=True)
class Size:
    """How many nodes, and ranks on each."""

    nodes: int
    ranks_per_node: int

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks_per_node}"


ONE_RANK = Size(1, 1)


@dataclass(frozen=True)
class ScalePlan:
    """Jobs that run at each size; the first size is one rank alone, the reference of all."""

    jobs: tuple[JobSpec, ...]
    cluster: ClusterSpec
    sizes: tuple[Size, ...]
    strong: bool

    @property
    def scaling(self) -> str:
        return SCALINGS[self.strong]

    @property
    def full_node(self) -> Size:
        """One whole node, the other thing that sizes are compared with where it is run."""
        return Size(1, self.cluster.ranks_per_node)

    def cluster_at(self, size: Size) -> ClusterSpec:
        """The cluster with another number of nodes; overrides of nodes that exist stay."""
        data = self.cluster.to_dict()
        nodes = {f"node{k}" for k in range(size.nodes)}
        overrides = {name: own for name, own in data.get("overrides", {}).items() if name in nodes}
        counts = {"nodes": size.nodes, "ranks_per_node": size.ranks_per_node}
        return ClusterSpec.from_dict({**data, "name": str(size), **counts, "overrides": overrides})

    def jobs_at(self, size: Size) -> list[JobSpec]:
        """In strong scaling a rank gets its share of the batch, and of the time it computes."""
        return [_share_of(job, size.num_ranks) if self.strong else job for job in self.jobs]


def plan_scale(
    jobs: Sequence[JobSpec], cluster: ClusterSpec, nodes: str, scaling: str
) -> ScalePlan:
    """Raises JobSpecError for what is not a list of sizes, or cannot be run at one of them."""
    if scaling not in SCALINGS:
        raise JobSpecError(
            f"SCALING={scaling}",
            rule="weak keeps the batch of a rank, strong that of a step",
            fix=[f"SCALING={each}" for each in SCALINGS],
        )
    _require_distinct([job.name for job in jobs])
    counts = _node_counts(nodes)
    sizes = [Size(count, cluster.ranks_per_node) for count in counts]
    all_sizes = tuple(dict.fromkeys([ONE_RANK, *sizes]))
    plan = ScalePlan(tuple(jobs), cluster, all_sizes, scaling == "strong")
    for job in plan.jobs:
        _require_everywhere(job, plan.sizes)
        if plan.strong:
            _require_divisible(job, sizes)
    return plan


def _node_counts(text: str) -> list[int]:
    words = text.split()
    counts = [int(word) for word in words if word.isascii() and word.isdecimal()]
    right = counts and len(counts) == len(words) and all(1 <= n <= MOST_NODES for n in counts)
    if not right or len(set(counts)) < len(counts):
        raise JobSpecError(
            f'NODES="{text}"',
            rule=f"numbers of nodes from 1 to {MOST_NODES}, each once, with blanks between them",
            fix='NODES="1 2 4"',
        )
    return sorted(counts)


def _require_distinct(names: Sequence[str]) -> None:
    if not names or len(set(names)) < len(names):
        raise JobSpecError(
            f'JOBS="{" ".join(names)}"',
            rule="at least one job, and each once: lines of the table bear the jobs' names",
            fix='JOBS="ring hier"',
        )


def _require_everywhere(job: JobSpec, sizes: Sequence[Size]) -> None:
    if not isinstance(job.placement, str):
        raise JobSpecError(
            f"{job.name}: placement {list(job.placement)}",
            rule="the same job runs at several sizes, and a list of nodes fits one only",
            fix="placement: contiguous, or interleaved",
        )
    for size in sizes:
        node_of(job.placement, size.nodes, size.ranks_per_node)
    if job.inject and job.inject.rank:
        raise JobSpecError(
            f"{job.name}: inject.rank {job.inject.rank}",
            rule="one rank alone is the reference, and it is rank 0",
            fix="inject.rank: 0, or null for every rank",
        )


def _require_divisible(job: JobSpec, sizes: Sequence[Size]) -> None:
    batch = job.data.batch_size
    for size in sizes:
        if batch % size.num_ranks:
            fits_all = lcm(*(each.num_ranks for each in sizes))
            larger = -(-batch // fits_all) * fits_all
            raise JobSpecError(
                f"{job.name}: a batch of {batch} over {size.num_ranks} ranks ({size})",
                rule="strong scaling divides the batch of one rank alone (data.batch_size) "
                "equally over all ranks",
                fix=[*_dividing_nodes(batch, size), f'SET="data.batch_size={larger}"'],
            )


def _dividing_nodes(batch: int, size: Size) -> list[str]:
    """The nearest numbers of nodes, below and above, whose ranks the batch divides over."""
    counts = [n for n in range(1, batch + 1) if batch % (n * size.ranks_per_node) == 0]
    below = [n for n in counts if n < size.nodes][-1:]
    above = [n for n in counts if n > size.nodes][:1]
    return [f"{n} nodes instead of {size.nodes}" for n in (*below, *above)]


def _share_of(job: JobSpec, num_ranks: int) -> JobSpec:
    data = job.data.model_copy(update={"batch_size": job.data.batch_size // num_ranks})
    return compute_scaled(job.model_copy(update={"data": data}), 1 / num_ranks)
