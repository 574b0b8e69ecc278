"""What each rank says of itself when it comes, and what all of it together must be.

Owns the refusals of ranks that cannot train together. Pure but for `own_facts`.
"""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.nodes import Node, NodeFacts
from ddp.membership import node_identity
from ddp.nic import nics
from jobs.errors import JobSpecError, LaunchError
from jobs.rankwords import ranks_words
from jobs.runinfo import num_cores, versions
from jobs.spec import JobSpec, node_of
from jobs.torchrun.environment import Seat
from jobs.torchrun.nic import FabricNic, listed

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class RankFacts:
    """One rank, where it runs, and what it was given."""

    rank: int
    local_rank: int | None
    local_world_size: int | None
    node: int | None
    nnodes: int | None
    place: str
    """The kernel and the network that it runs in: the same on ranks of one machine or container."""
    host: str
    interface: str
    address: str
    loopback: bool
    nics: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    threads_asked: int | None
    job: dict[str, Any]
    problem: str | None = None
    """Why this rank cannot train; it has come to say so."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def own_facts(
    seat: Seat,
    nic: FabricNic | None,
    job: JobSpec | None,
    environment: Mapping[str, str],
    problem: str | None = None,
) -> RankFacts:
    """This rank's. Without a `problem` there are a NIC and a job."""
    asked = environment.get(THREADS, "")
    place = node_identity({})
    return RankFacts(
        rank=seat.rank,
        local_rank=seat.local_rank,
        local_world_size=seat.local_world_size,
        node=seat.node,
        nnodes=seat.nnodes,
        place=place,
        host=platform.node(),
        interface=nic.interface if nic else "",
        address=nic.address if nic else "",
        loopback=bool(nic and nic.is_loopback),
        nics=listed(nics()),
        machine=NodeFacts(
            kernel=platform.release(),
            boot_id=place.split()[0].removeprefix("boot="),
            cores=num_cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            python=platform.python_version(),
            congestion_control=None,
        ).to_json(),
        versions=versions(),
        threads_asked=int(asked) if asked.isdecimal() and int(asked) else None,
        job=job.model_dump(mode="json") if job else {},
        problem=problem,
    )


@dataclass(frozen=True)
class Layout:
    """Where all ranks are: `node_of[rank]`, `local_ranks[rank]`, and one rank of each node."""

    node_of: tuple[int, ...]
    local_ranks: tuple[int, ...]
    first: tuple[RankFacts, ...]
    """Of each node, what its lowest rank said."""
    threads: int

    @property
    def nproc_per_node(self) -> int:
        """The most that a node has, where they differ."""
        return max(Counter(self.node_of).values())

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(f"node{index}", index, facts.address, facts.interface)
            for index, facts in enumerate(self.first)
        )

    def ranks_on(self, node: int) -> list[int]:
        return [rank for rank, place in enumerate(self.node_of) if place == node]


def layout(ranks: Sequence[RankFacts]) -> Layout:
    """Raises LaunchError, the same on all ranks, where they cannot train together."""
    for facts in ranks:
        if facts.problem:
            raise LaunchError(f"rank {facts.rank} ({facts.host}): {facts.problem}")
    _require_one_job(ranks)
    _require_one_version(ranks)
    places = _nodes(ranks)
    first = tuple(ranks[places.index(node)] for node in range(max(places) + 1))
    _require_reachable(ranks, places)
    return Layout(places, _local_ranks(ranks, places), first, _threads(ranks))


def placed(job: JobSpec, places: tuple[int, ...], nproc_per_node: int) -> JobSpec:
    """The job with the placement that there is. Raises JobSpecError where it asks for another."""
    nnodes = max(places) + 1
    even = len(places) == nnodes * nproc_per_node
    asked = "placement" in job.model_fields_set
    if even and node_of(job.placement, nnodes, nproc_per_node) == places:
        return job
    if asked:
        raise JobSpecError(
            f"placement: {job.placement}, but ranks are on nodes {list(places)}",
            rule="whoever starts the ranks decides where they run",
            fix="leave placement out, or start them so (srun --distribution=cyclic, say)",
        )
    return job.model_copy(update={"placement": list(places)})


def _nodes(ranks: Sequence[RankFacts]) -> tuple[int, ...]:
    """As whoever started them numbers the nodes, else in the order in which ranks have them."""
    told = [facts.node for facts in ranks]
    if None in told:
        if any(node is not None for node in told):
            without = [facts.rank for facts in ranks if facts.node is None]
            raise LaunchError(
                f"{ranks_words(without)} not told which node they are on, others were",
                rule="all ranks are started in one way",
                fix="set GROUP_RANK on every rank, or on none",
            )
        numbers = {
            place: number for number, place in enumerate(dict.fromkeys(it.place for it in ranks))
        }
        return tuple(numbers[facts.place] for facts in ranks)
    places = tuple(node for node in told if node is not None)
    missing = sorted(set(range(max(places) + 1)) - set(places))
    counts = {facts.nnodes for facts in ranks if facts.nnodes is not None}
    if missing or counts - {max(places) + 1}:
        raise LaunchError(
            f"ranks are on nodes {sorted(set(places))} of {max(counts | {max(places) + 1})}",
            rule="every node has a rank",
            fix="start as many nodes as were announced",
        )
    return places


def _local_ranks(ranks: Sequence[RankFacts], places: tuple[int, ...]) -> tuple[int, ...]:
    """As told, else by rank within the node."""
    found: list[int] = []
    for facts, node in zip(ranks, places, strict=True):
        peers = [each for each in range(len(places)) if places[each] == node]
        told = [ranks[each].local_rank for each in peers]
        seen = f"node {node} has {ranks_words(peers)}, with local ranks {told}"
        announced = {ranks[each].local_world_size for each in peers} - {None}
        if announced - {len(peers)}:
            raise LaunchError(
                f"node {node} has {ranks_words(peers)}, of {sorted(map(str, announced))} announced",
                rule="counts add up",
                fix="start as many ranks on each node as were announced",
            )
        if set(told) != {None} and sorted(map(str, told)) != sorted(map(str, range(len(told)))):
            raise LaunchError(
                seen,
                rule=f"they are 0 to {len(peers) - 1}, each once",
                fix="start all ranks of a node in one way",
            )
        own = facts.local_rank
        found.append(peers.index(facts.rank) if own is None else own)
    return tuple(found)


def _require_one_job(ranks: Sequence[RankFacts]) -> None:
    for facts in ranks[1:]:
        if facts.job != ranks[0].job:
            own, first = dict(_flat(facts.job)), dict(_flat(ranks[0].job))
            keys = [key for key in own.keys() | first.keys() if own.get(key) != first.get(key)]
            key = min(keys)
            raise LaunchError(
                f"rank {facts.rank} ({facts.host}) was given another job than rank 0: "
                f"{key} is {own.get(key)}, and {first.get(key)} on rank 0",
                rule="all ranks train one job",
                fix="copy the job's file to every machine, and give all ranks the same --set",
            )


def _flat(document: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _require_one_version(ranks: Sequence[RankFacts]) -> None:
    differing = {
        name: [facts.versions[name] for facts in ranks]
        for name in ("ddplab", "python", "torch")
        if len({facts.versions[name] for facts in ranks}) > 1
    }
    if differing:
        name, values = next(iter(differing.items()))
        seen = [
            f"{each} {values[other]} on {ranks[other].host} (rank {other}), "
            f"{values[0]} on {ranks[0].host}"
            for each, values in differing.items()
            for other in [next(k for k, value in enumerate(values) if value != values[0])]
        ]
        raise LaunchError(
            f"{name} is not the same everywhere",
            rule="ranks add in the same order only with the same Python, torch and ddplab",
            fix=f"install {name} {values[0]} on every machine",
            seen="; ".join(seen),
        )


def _require_reachable(ranks: Sequence[RankFacts], places: tuple[int, ...]) -> None:
    """On more than one machine no rank may listen where only its own machine hears it."""
    if len({facts.place for facts in ranks}) == 1:
        return
    for facts, node in zip(ranks, places, strict=True):
        if facts.loopback:
            raise LaunchError(
                f"node {node} ({facts.host}) would use {facts.interface} {facts.address}",
                rule="ranks of other machines cannot reach a loopback address",
                fix=f"--fabric with one of {facts.nics}; MASTER_ADDR is rank 0's address there",
            )


def _threads(ranks: Sequence[RankFacts]) -> int:
    """The same for all, or they would add in different orders: the least of what each may take."""
    asked = [facts.threads_asked for facts in ranks if facts.threads_asked is not None]
    if len(asked) == len(ranks):
        return min(asked)
    sharing = Counter(str(facts.machine["boot_id"]) for facts in ranks)
    shares = [
        max(1, int(facts.machine["cores"]) // sharing[str(facts.machine["boot_id"])])
        for facts in ranks
    ]
    return min([*asked, *shares])
