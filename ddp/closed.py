"""Closed forms: what an all-reduce costs on nodes that are all alike, however many they are.

Where every node has as many ranks and the same links, stages repeat: an algorithm is a few kinds of
stage, each with a count and the bytes that it puts on the busiest node. Owns those kinds;
`ddp.cost` prices them as it prices the stages of a schedule, so that both agree (tests hold them
against one another), and a cluster of 65,536 ranks takes no longer than one of four.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ddp.cost import Kind, Price, price_kinds
from ddp.errors import UsageError
from ddp.fabric import Link, NodeLinks


@dataclass(frozen=True)
class Uniform:
    """`num_nodes` nodes of `ranks_per_node` ranks, placed node by node.

    `nics` of each node carry side by side; a single flow uses one of them. `rank_bytes_per_s` is
    what a rank sends or takes inside its node, where it has a link of its own there; else ranks
    share `links.intra`. Raises UsageError for sizes below one.
    """

    num_nodes: int
    ranks_per_node: int
    links: NodeLinks
    nics: int = 1
    rank_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_nodes", "ranks_per_node", "nics"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: at least one")

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True)
class ClosedForm:
    """`kinds(cluster, num_bytes)` are the stages; `flows(cluster)` is how many ranks of a node talk
    to other nodes at once, `inside(cluster)` how many to ranks of their own. `fits` tells why a
    cluster is refused, or None.
    """

    kinds: Callable[[Uniform, float], Iterator[Kind]]
    flows: Callable[[Uniform], int]
    inside: Callable[[Uniform], int]
    fits: Callable[[Uniform], str | None] = lambda _: None


def price_uniform(name: str, cluster: Uniform, num_bytes: float, segments: int = 1) -> Price:
    """As `ddp.cost.price` for an algorithm in CLOSED_FORMS; traffic is that of the busiest node.

    Raises UsageError for a name without a closed form, and clusters that the algorithm refuses.
    """
    if name not in CLOSED_FORMS:
        raise UsageError(f"{name!r} has no closed form: choose one of {', '.join(CLOSED_FORMS)}")
    form = CLOSED_FORMS[name]
    if reason := form.fits(cluster):
        raise UsageError(
            f"{name} on {cluster.num_nodes} x {cluster.ranks_per_node} ranks: {reason}"
        )
    kinds = form.kinds(cluster, num_bytes)
    return price_kinds(kinds, links_of(name, cluster), segments, nics_of(name, cluster))


def nics_of(name: str, cluster: Uniform) -> int:
    """How many of a node's NICs the algorithm keeps busy."""
    return min(cluster.nics, CLOSED_FORMS[name].flows(cluster))


def links_of(name: str, cluster: Uniform) -> NodeLinks:
    """The links of a node, its inside as fast as the ranks that send there at once."""
    if cluster.rank_bytes_per_s is None:
        return cluster.links
    rate = cluster.rank_bytes_per_s * max(1, CLOSED_FORMS[name].inside(cluster))
    return replace(cluster.links, intra=Link(cluster.links.intra.alpha_s, rate))


def _ring(cluster: Uniform, num_bytes: float) -> Iterator[Kind]:
    """Each node sends one chunk on, and passes all others to a neighbour inside."""
    chunk, inside = num_bytes / cluster.num_ranks, cluster.ranks_per_node - 1
    stages = 2 * (cluster.num_ranks - 1)
    if cluster.num_nodes == 1:
        yield Kind(stages, 0.0, 0.0, cluster.num_ranks * chunk)
    else:
        yield Kind(stages, chunk, chunk, inside * chunk)


def _interleaved(cluster: Uniform, num_bytes: float) -> Iterator[Kind]:
    """Every hop leaves its node."""
    if cluster.num_nodes == 1:
        yield from _ring(cluster, num_bytes)
        return
    sent = cluster.ranks_per_node * num_bytes / cluster.num_ranks
    yield Kind(2 * (cluster.num_ranks - 1), sent, sent, 0.0)


def _hierarchical(cluster: Uniform, num_bytes: float) -> Iterator[Kind]:
    nodes, ranks = cluster.num_nodes, cluster.ranks_per_node
    across, shared = num_bytes / nodes, (ranks - 1) * num_bytes / nodes
    yield Kind(1 if ranks > 1 else 0, 0.0, 0.0, (ranks - 1) * num_bytes)
    yield Kind(nodes - 1, across, across, 0.0)
    yield Kind(nodes - 1, across, across, shared)
    yield Kind(1 if ranks > 1 else 0, 0.0, 0.0, shared)


def _leader(cluster: Uniform, num_bytes: float) -> Iterator[Kind]:
    nodes, ranks = cluster.num_nodes, cluster.ranks_per_node
    across = num_bytes / nodes
    yield Kind(1 if ranks > 1 else 0, 0.0, 0.0, (ranks - 1) * num_bytes)
    yield Kind(2 * (nodes - 1), across, across, 0.0)
    yield Kind(1 if ranks > 1 else 0, 0.0, 0.0, (ranks - 1) * num_bytes)


def _halving_doubling(cluster: Uniform, num_bytes: float) -> Iterator[Kind]:
    """Both ways: stage k moves 1 / 2^(k+1) of the buffer from every rank."""
    distance = 1
    while distance < cluster.num_ranks:
        moved = cluster.ranks_per_node * num_bytes / (2 * distance)
        if distance < cluster.ranks_per_node:
            yield Kind(2, 0.0, 0.0, moved)
        else:
            yield Kind(2, moved, moved, 0.0)
        distance *= 2


def _recursive_doubling(cluster: Uniform, num_bytes: float) -> Iterator[Kind]:
    """Every rank sends the whole buffer in each stage, inside its node at first."""
    moved = cluster.ranks_per_node * num_bytes
    inside = (cluster.ranks_per_node - 1).bit_length()
    yield Kind(inside, 0.0, 0.0, moved)
    yield Kind((cluster.num_ranks - 1).bit_length() - inside, moved, moved, 0.0)


def _parameter_server(cluster: Uniform, num_bytes: float) -> Iterator[Kind]:
    """The node of rank 0, which all go through; NICs are taken to be as fast in as out."""
    outside = cluster.num_ranks - cluster.ranks_per_node
    inside = cluster.ranks_per_node - 1
    yield Kind(inside, 0.0, 0.0, num_bytes)
    yield Kind(outside, 0.0, num_bytes, 0.0)
    if cluster.num_ranks > 1:
        yield Kind(1, outside * num_bytes, 0.0, inside * num_bytes)


def _every_rank(cluster: Uniform) -> int:
    return cluster.ranks_per_node


def _all_but_one(cluster: Uniform) -> int:
    return cluster.ranks_per_node - (cluster.num_nodes > 1)


def _one_rank(cluster: Uniform) -> int:
    del cluster
    return 1


def _powers_of_two(cluster: Uniform) -> str | None:
    if cluster.num_ranks & (cluster.num_ranks - 1):
        return "it pairs ranks off, which takes a power of two of them"
    return None


CLOSED_FORMS: Mapping[str, ClosedForm] = {
    "ring": ClosedForm(_ring, _one_rank, _all_but_one),
    "ring, interleaved": ClosedForm(_interleaved, _every_rank, _every_rank),
    "hierarchical": ClosedForm(_hierarchical, _every_rank, _every_rank),
    "hierarchical_leader": ClosedForm(_leader, _one_rank, _one_rank),
    "halving_doubling": ClosedForm(_halving_doubling, _every_rank, _every_rank, _powers_of_two),
    "recursive_doubling": ClosedForm(_recursive_doubling, _every_rank, _every_rank, _powers_of_two),
    "parameter_server": ClosedForm(_parameter_server, _one_rank, _one_rank),
}
"""By the algorithm's name; a ring's order is behind a comma where it is not the usual one."""
