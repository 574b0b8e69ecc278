"""What each algorithm would cost on a cluster, and which link would be fast enough. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddp.closed import CLOSED_FORMS, Uniform, links_of, nics_of, price_uniform
from ddp.cost import Price, predict_step
from ddp.errors import UsageError
from ddp.fabric import Link, NodeLinks
from ddp.plan import choose_segments

GOOD_ENOUGH = 0.9
ROUNDS = 80
FASTEST = 1e18  # bytes/s: as good as no limit


@dataclass(frozen=True)
class Buckets:
    """What a run reduced one after another, and when each was ready: seconds from the start of its
    backward, which took `backward_s`."""

    num_bytes: tuple[int, ...]
    ready_s: tuple[float, ...]
    backward_s: float
    overlap: bool
    """Whether each was reduced as it was ready, else all of them after backward."""


@dataclass(frozen=True)
class Asked:
    """One training step on nodes that are all alike."""

    gradient_bytes: int
    """On each rank, reduced once a step."""
    cluster: Uniform
    compute_s: float
    """Of a step with nothing sent."""
    overlap: float
    """The share of it behind which communication can hide, 0 to 1."""
    buckets: Buckets | None = None
    """Those of a run; then they say what hides."""
    carried_ratio: float | None = None
    """What the run's slowest NIC carried of its lab's limit, where another rate is asked for."""

    def step_s(self, comm_s: float, overlap: float | None = None) -> float:
        hidden_s = self.compute_s * (self.overlap if overlap is None else overlap)
        return self.compute_s + max(0.0, comm_s - hidden_s)

    def efficiency(self, comm_s: float, overlap: float | None = None) -> float:
        """Step without network / step."""
        return self.compute_s / self.step_s(comm_s, overlap)


@dataclass(frozen=True)
class Estimate:
    """One algorithm. Times in seconds, `sent_bytes` out of the busiest node."""

    algorithm: str
    sent_bytes: int
    between_s: float
    """How long its NICs are busy with it."""
    inside_s: float
    comm_s: float
    step_s: float
    efficiency: float
    efficiency_none_hidden: float
    efficiency_all_hidden: float
    needed_bytes_per_s: float | None
    """A NIC with which the efficiency is GOOD_ENOUGH; None: no NIC is fast enough, as something
    else holds it up."""


@dataclass(frozen=True)
class RuleOfThumb:
    """Two times the gradients over the bandwidth: what people reckon with on paper."""

    moved_bytes: int
    seconds: float
    efficiency_none_hidden: float
    efficiency_all_hidden: float


def rule_of_thumb(asked: Asked, bytes_per_s: float) -> RuleOfThumb:
    seconds = 2 * asked.gradient_bytes / bytes_per_s
    none, every = asked.efficiency(seconds, 0.0), asked.efficiency(seconds, 1.0)
    return RuleOfThumb(2 * asked.gradient_bytes, seconds, none, every)


def estimates(asked: Asked) -> Iterator[Estimate]:
    """In the order of CLOSED_FORMS, but for those that refuse the cluster."""
    for name in CLOSED_FORMS:
        try:
            yield _estimate(name, asked)
        except UsageError:
            continue


def _estimate(name: str, asked: Asked) -> Estimate:
    price = _price(name, asked.cluster, asked.gradient_bytes)
    comm_s, step_s = _times(name, asked.cluster, asked)
    traffic, links = price.traffic[0], links_of(name, asked.cluster)
    nics = nics_of(name, asked.cluster)
    out_s = traffic.out_bytes / links.nic_out.bytes_per_s / nics
    in_s = traffic.in_bytes / links.nic_in.bytes_per_s / nics
    return Estimate(
        algorithm=name,
        sent_bytes=traffic.out_bytes,
        between_s=max(out_s, in_s),
        inside_s=traffic.intra_bytes / links.intra.bytes_per_s,
        comm_s=comm_s,
        step_s=step_s,
        efficiency=asked.compute_s / step_s,
        efficiency_none_hidden=asked.efficiency(comm_s, 0.0),
        efficiency_all_hidden=asked.efficiency(comm_s, 1.0),
        needed_bytes_per_s=_needed(name, asked),
    )


def _times(name: str, cluster: Uniform, asked: Asked) -> tuple[float, float]:
    """Seconds of all that is reduced in a step, and of the step."""
    buckets = asked.buckets
    if buckets is None:
        comm_s = _price(name, cluster, asked.gradient_bytes).seconds
        return comm_s, asked.step_s(comm_s)
    by_size = {size: _price(name, cluster, size).seconds for size in set(buckets.num_bytes)}
    seconds = [by_size[size] for size in buckets.num_bytes]
    step = predict_step(
        asked.compute_s, buckets.ready_s, seconds, buckets.backward_s, buckets.overlap
    )
    return step.communication_s, step.step_s


def _price(name: str, cluster: Uniform, num_bytes: int) -> Price:
    segments = choose_segments(name.partition(",")[0], num_bytes, cluster.num_nodes)
    return price_uniform(name, cluster, num_bytes, segments)


def _needed(name: str, asked: Asked) -> float | None:
    """The slowest NIC that is good enough, by halving; a faster one never makes a step longer."""
    if asked.cluster.num_nodes == 1:
        return None

    def good(bytes_per_s: float) -> bool:
        links = asked.cluster.links
        nic = Link(links.nic_out.alpha_s, bytes_per_s)
        cluster = replace(asked.cluster, links=NodeLinks(nic, nic, links.intra))
        return asked.compute_s / _times(name, cluster, asked)[1] >= GOOD_ENOUGH

    low, high = 1.0, FASTEST
    if not good(high):
        return None
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
