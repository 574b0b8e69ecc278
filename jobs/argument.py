"""What the launcher tells one rank, as plain data that crosses a process boundary as JSON."""

from typing import Any

from cluster.yamlfile import StrictModel
from jobs.spec import JobSpec


class NodeRates(StrictModel):
    """What one node's links carried when they were measured; None where that is not known."""

    out_bytes_per_s: float | None
    """Out of the node."""
    in_bytes_per_s: float | None
    """Into the node."""
    intra_bytes_per_s: float | None
    """Inside the node."""
    burst_bytes: int | None = None
    """What passes out of the node, and into it, before the limit of an idle link holds."""


class RankArgument(StrictModel):
    """Everything a rank needs to know besides what it measures itself."""

    run_dir: str | None
    """The run folder, where this rank writes its records; None: it sends them to its launcher."""
    run_id: str
    """The run's name."""
    job: JobSpec
    """The job, resolved."""
    rank: int
    """This rank's number."""
    local_rank: int
    """Its number inside its node."""
    world_size: int
    """Ranks in all."""
    nnodes: int
    """Nodes in all."""
    nproc_per_node: int
    """Ranks on each node, as the cluster has it."""
    node: int
    """The node this rank runs on."""
    node_name: str
    """What people call that node."""
    node_of: list[int]
    """The node of every rank."""
    master_addr: str
    """Literal address of rank 0 on the fabric."""
    master_port: int
    """Port of the rendezvous there."""
    listen_fd: int | None
    """Rank 0 only: a socket that already listens on that port."""
    interface: str
    """The NIC that owns this node's fabric address."""
    links: list[NodeRates] | None
    """What the probe measured, for every node; None: not measured."""
    shared_memory: bool = True
    """Whether ranks of a node may read each other's buckets; not where its inside has a rate, which
    memory would not keep.
    """
    measure_links: bool = False
    """Whether ranks measure the links themselves before they begin, as nobody did before them."""
    node_names: list[str] | None = None
    """What people call each node; None: by its number."""
    probe: dict[str, Any] | None = None
    """What ranks measured themselves, once they have."""
    threads: int
    """Threads torch computes with."""
