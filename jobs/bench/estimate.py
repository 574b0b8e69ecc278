"""About how long a bench takes, before anything is measured: bytes over what links carry.

Owns the default sizes, which are chosen so that it ends in about a minute.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.site import Site
from ddp.algorithms import find_algorithm, ring_schedule
from ddp.cost import price
from ddp.fixed import in_a_row
from jobs.argument import NodeRates
from jobs.bench.asked import BenchSpec, Contender, fabric_of
from jobs.predict import priced_fabric
from jobs.rankplan import measured_links

START_S = 6.0  # importing torch, meeting, calibrating
ABOUT_S = 55.0
UNKNOWN_BYTES_PER_S = 1e9  # of a link that nobody limited or measured
INSIDE_BYTES_PER_S = 3e8  # a node's inside where it was not measured: loopback TCP, busy cores
TURN_S = 0.004  # barriers
WORK_BYTES_PER_S = 4e8  # filling and checking, ranks sharing cores
MIB = 2**20
LARGEST = tuple(MIB << power for power in range(6, -1, -1))  # 64 MiB ... 1 MiB
PATIENCE = 5


@dataclass(frozen=True)
class _Usual:
    """What a stage costs where nobody has calibrated."""

    alpha_inter_s: float = 0.001
    alpha_intra_s: float = 0.001
    intra_bytes_per_s: float | None = None


def seconds(bench: BenchSpec, site: Site) -> float:
    """All of it, from the command to the table."""
    rounds = bench.rounds + bench.warmup_rounds
    return START_S + rounds * sum(_round_s(bench, site))


def timeout_s(bench: BenchSpec, site: Site) -> float:
    """How long a rank waits for a peer, at least, so that no single all-reduce is cut short."""
    return PATIENCE * max(_round_s(bench, site))


def default_sizes(contenders: Sequence[Contender], rounds: int, site: Site) -> tuple[int, ...]:
    """A quarter of the largest one, and that one: so that all ends in about a minute."""
    for largest in LARGEST:
        sizes = (largest // 4, largest)
        asked = BenchSpec(
            sizes_bytes=sizes, contenders=tuple(contenders), rounds=rounds, warmup_rounds=0
        )
        if seconds(asked, site) <= ABOUT_S:
            break
    return sizes


def _round_s(bench: BenchSpec, site: Site) -> list[float]:
    """Seconds of one turn of each contender with each size."""
    spec, found = site.spec, []
    links = _links(site)
    for contender in bench.contenders:
        placed = fabric_of(contender.placement, spec.nodes, spec.ranks_per_node)
        fabric = priced_fabric(placed.node_of, links, _Usual())
        assert fabric is not None
        build = find_algorithm(contender.algorithm).build
        schedule = (
            build(fabric, contender.ring_order, 0)
            if build
            else ring_schedule(range(len(placed.node_of)))
        )
        for size in bench.sizes_bytes:
            work_s = 2 * size * in_a_row(size) / WORK_BYTES_PER_S
            found.append(price(schedule, fabric, size).seconds * in_a_row(size) + work_s + TURN_S)
    return found


def _links(site: Site) -> list[NodeRates]:
    """What was measured; where nothing was, what links are limited to."""
    spec = site.spec
    probe = site.probe.to_json() if site.probe else None
    measured = measured_links(probe, spec.node_names)
    if measured and all(node["out_bytes_per_s"] or spec.nodes == 1 for node in measured):
        inside = [node["intra_bytes_per_s"] or INSIDE_BYTES_PER_S for node in measured]
        return [
            NodeRates(**{**node, "intra_bytes_per_s": rate})
            for node, rate in zip(measured, inside, strict=True)
        ]
    rates = [spec.links_of(name).inter_node.rate_bits_per_s for name in spec.node_names]
    return [
        NodeRates(
            out_bytes_per_s=rate / 8 if rate else UNKNOWN_BYTES_PER_S,
            in_bytes_per_s=rate / 8 if rate else UNKNOWN_BYTES_PER_S,
            intra_bytes_per_s=INSIDE_BYTES_PER_S,
        )
        for rate in rates
    ]
