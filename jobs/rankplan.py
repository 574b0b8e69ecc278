"""Which rank runs where and what it is told: cluster and job become one order per agent. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.nodes import Node
from cluster.shaping import burst_bytes
from jobs.spec import JobSpec

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Program:
    """What each rank runs: `target` is module:function, called with the rank's argument."""

    target: str
    preload: tuple[str, ...]


TRAINING = Program("jobs.worker:main", ("torch", "jobs.worker"))


TORCHS_COMPILER = "torch._dynamo"  # which torch's own DistributedDataParallel imports


def preloads(program: Program, jobs: Sequence[JobSpec]) -> tuple[str, ...]:
    """What is imported once on each node, before its ranks are forked."""
    stock = any(job.ddp.wrapper == "torch" for job in jobs)
    return (*program.preload, TORCHS_COMPILER) if stock else program.preload


@dataclass(frozen=True)
class Threads:
    """Threads each rank computes with, and whether the user's environment says so."""

    per_rank: int
    set_by_user: bool

    def environment(self) -> dict[str, str]:
        return dict.fromkeys(THREAD_VARIABLES, str(self.per_rank))


@dataclass(frozen=True)
class RankPlan:
    """The ranks of one job: `node_of[rank]`, and the lab's nodes by index."""

    job: JobSpec
    node_of: tuple[int, ...]
    nodes: tuple[Node, ...]
    nproc_per_node: int
    threads: Threads
    links: Sequence[Mapping[str, Any]] | None
    measure_links: bool = False
    """Whether ranks measure the links themselves before they begin."""
    shared_memory: bool = True
    """Whether ranks of a node may read each other's buckets."""

    @property
    def used_nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.index in self.node_of)

    def start_orders(
        self, target: str, run_dir: str | None, run_id: str, ready: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, dict[str, Any]]:
        """The order for each node's agent; `ready[node]` is what its agent said of itself."""
        first = self.node_of[0]
        common = {
            "run_dir": run_dir,
            "run_id": run_id,
            "job": self.job.model_dump(mode="json"),
            "world_size": len(self.node_of),
            "nnodes": len(self.nodes),
            "nproc_per_node": self.nproc_per_node,
            "node_of": list(self.node_of),
            "master_addr": self.nodes[first].address,
            "master_port": ready[first]["port"],
            "links": self.links,
            "measure_links": self.measure_links,
            "shared_memory": self.shared_memory,
            "node_names": [node.name for node in self.nodes],
            "threads": self.threads.per_rank,
        }
        return {
            node.index: {
                "op": "start",
                "target": target,
                "ranks": [
                    self._rank(rank, local_rank, node, common, ready[node.index]["listen_fd"])
                    for local_rank, rank in enumerate(self.ranks_on(node.index))
                ],
            }
            for node in self.used_nodes
        }

    def ranks_on(self, node: int) -> list[int]:
        return [rank for rank, place in enumerate(self.node_of) if place == node]

    def _rank(
        self, rank: int, local_rank: int, node: Node, common: Mapping[str, Any], listen_fd: int
    ) -> dict[str, Any]:
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(common["world_size"]),
            "LOCAL_WORLD_SIZE": str(len(self.ranks_on(node.index))),
            "MASTER_ADDR": str(common["master_addr"]),
            "MASTER_PORT": str(common["master_port"]),
            "DDPLAB_NODE": node.name,
            "GROUP_RANK": str(node.index),
            "GLOO_SOCKET_IFNAME": node.interface,
            "NCCL_SOCKET_IFNAME": f"={node.interface}",  # without "=" it would be a prefix
            "TP_SOCKET_IFNAME": node.interface,
            **self.threads.environment(),
        }
        argument = {
            **common,
            "rank": rank,
            "local_rank": local_rank,
            "node": node.index,
            "node_name": node.name,
            "interface": node.interface,
            "listen_fd": listen_fd if rank == 0 else None,
        }
        return {"rank": rank, "local_rank": local_rank, "env": environment, "argument": argument}


def choose_threads(environment: Mapping[str, str], num_cores: int, world_size: int) -> Threads:
    """An equal share of the cores all ranks run on, at least 1, unless OMP_NUM_THREADS says."""
    asked = environment.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return Threads(int(asked), set_by_user=True)
    return Threads(max(1, num_cores // world_size), set_by_user=False)


def measured_links(
    probe: Mapping[str, Any] | None,
    names: Sequence[str],
    limits: Mapping[str, int | None] | None = None,
) -> list[dict[str, Any]] | None:
    """What each node's links carry, from a probe's JSON; None where nothing was measured.

    Both ways at once where that was measured, since a reduction sends and receives together; the
    best pair of each node, since a slow peer says nothing about this node. `limits`: bits per
    second to which we limit each node's link, whose burst is known from that.
    """
    if probe is None:
        return None
    rates: dict[tuple[str, str, str], float] = {}
    for link in probe["links"]:
        for end in ("src", "dst"):
            key = (link[end], end, link["mode"])
            rates[key] = max(rates.get(key, 0.0), float(link["measured_bytes_per_second"]))

    def between(name: str, end: str) -> float | None:
        return rates.get((name, end, "both_ways")) or rates.get((name, end, "one_way"))

    return [
        {
            "out_bytes_per_s": between(name, "src"),
            "in_bytes_per_s": between(name, "dst"),
            "intra_bytes_per_s": rates.get((name, "src", "intra_node")),
            "burst_bytes": burst_bytes(limit) if (limit := (limits or {}).get(name)) else None,
        }
        for name in names
    ]
