"""What a schedule costs on a fabric, in seconds and bytes, and what a step costs with it.

Owns the arithmetic. Measures nothing: rates and fixed costs come with the Fabric, from the probe
and from calibration.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add

from ddp.errors import UsageError
from ddp.fabric import Direction, Fabric, Link, NodeLinks
from ddp.overlap import Sums
from ddp.schedule import Schedule, chunk_bounds

Capacity = tuple[int, Direction]  # node number, and what of it
_OUT_IN_INTRA = (Direction.NIC_OUT, Direction.NIC_IN, Direction.INTRA)


@dataclass(frozen=True)
class NodeTraffic:
    """Payload bytes of one all-reduce: out of and into the node's NIC, and inside the node."""

    out_bytes: int
    in_bytes: int
    intra_bytes: int


@dataclass(frozen=True)
class Price:
    """What one all-reduce costs. `bottleneck` is the capacity that is busy longest, if any is."""

    seconds: float
    traffic: Mapping[int, NodeTraffic]
    bottleneck: Capacity | None


@dataclass(frozen=True)
class StepPrediction:
    """A training step. `full_overlap` and `no_overlap` are the bounds it must lie between."""

    step_s: float
    communication_s: float
    exposed_s: float
    full_overlap_step_s: float
    no_overlap_step_s: float


def price(
    schedule: Schedule,
    fabric: Fabric,
    num_bytes: int,
    segments: int = 1,
    burst_share: float = 1.0,
) -> Price:
    """Price an all-reduce of `num_bytes` per rank, cut into `segments` that overlap.

    A stage takes as long as its slowest capacity: alpha + bytes / rate, over all transfers that
    share it. The first segment takes the sum of its stages; each further one adds what the busiest
    capacity needs for its bytes alone, since that one never pauses while segments follow. The
    alphas of that capacity's own stages pass while others' bytes do, all but one. So the result is
    never below bytes / rate of any capacity whose link lets nothing through beforehand. Of a link's
    burst, `burst_share` is there: less than 1 where others took of it. Raises UsageError without
    links.
    """
    if not fabric.links:
        raise UsageError("a fabric without links has no price; give it the links of every node")
    capacities = _capacities(fabric)
    links = [_link(fabric, capacity) for capacity in capacities]
    loads = _stage_loads(schedule, fabric, _chunk_bytes(schedule, num_bytes, 1, segments))
    sums = Sums.of(((1, load) for load in loads), links, segments)
    bottleneck = capacities[sums.busiest] if any(sums.totals) else None
    seconds = sums.seconds(segments, burst_share)
    return Price(seconds, _by_node(fabric, sums.totals), bottleneck)


@dataclass(frozen=True)
class Kind:
    """`count` stages alike: bytes out of and into the busiest node's NIC, and inside the node."""

    count: int
    out_bytes: float
    in_bytes: float
    intra_bytes: float


def price_kinds(kinds: Iterable[Kind], links: NodeLinks, segments: int = 1, nics: int = 1) -> Price:
    """As `price` for stages that are told by their kinds, on nodes that all have these links.

    `nics` NICs of a node share what crosses them. Traffic and bottleneck are of node 0, which
    stands for the busiest one.
    """
    if segments < 1:
        raise UsageError(f"{segments} segments: at least one")
    shared = [links.nic_out.times(nics), links.nic_in.times(nics), links.intra]
    loads = ((kind.count, (kind.out_bytes, kind.in_bytes, kind.intra_bytes)) for kind in kinds)
    sums = Sums.of((each for each in loads if each[0]), shared, segments)
    bottleneck = (0, _OUT_IN_INTRA[sums.busiest]) if any(sums.totals) else None
    traffic = NodeTraffic(*(round(total) for total in sums.totals))
    return Price(sums.seconds(segments), {0: traffic}, bottleneck)


def traffic(
    schedule: Schedule, fabric: Fabric, numel: int, itemsize: int, segments: int = 1
) -> dict[int, NodeTraffic]:
    """Payload bytes per node of an all-reduce of `numel` elements, to the byte; needs no links."""
    totals = [0] * len(_capacities(fabric))
    for load in _stage_loads(schedule, fabric, _chunk_bytes(schedule, numel, itemsize, segments)):
        totals = list(map(add, totals, load))
    return _by_node(fabric, totals)


def payload_bytes(
    schedule: Schedule, fabric: Fabric, numel: int, itemsize: int, segments: int = 1
) -> dict[int, int]:
    """Payload bytes that each node sends to other nodes."""
    nodes = traffic(schedule, fabric, numel, itemsize, segments)
    return {node: node_traffic.out_bytes for node, node_traffic in nodes.items()}


def predict_step(
    baseline_step_s: float,
    ready_s: Sequence[float],
    bucket_s: Sequence[float],
    backward_s: float,
    overlap: bool,
) -> StepPrediction:
    """A step whose computing takes `baseline_step_s`, of which backward is `backward_s`.

    Buckets are reduced one after another, in order, each from when it is ready (`ready_s`, counted
    from the start of backward) or, without `overlap`, from when backward has ended. What lasts
    beyond backward is exposed. Bounds: everything hidden behind computing, and nothing.
    """
    if len(ready_s) != len(bucket_s):
        raise UsageError(f"{len(ready_s)} ready times for {len(bucket_s)} buckets")
    ended_s = 0.0
    for ready, duration in zip(ready_s, bucket_s, strict=True):
        ended_s = max(ended_s, ready if overlap else backward_s) + duration
    exposed_s = max(0.0, ended_s - backward_s)
    communication_s = sum(bucket_s)
    return StepPrediction(
        step_s=baseline_step_s + exposed_s,
        communication_s=communication_s,
        exposed_s=exposed_s,
        full_overlap_step_s=max(baseline_step_s, communication_s),
        no_overlap_step_s=baseline_step_s + communication_s,
    )


def algorithm_bandwidth(num_bytes: int, seconds: float) -> float | None:
    """Bytes of gradients reduced per second; absent when it took no time."""
    return num_bytes / seconds if seconds > 0 else None


def bus_bandwidth(algorithm_bandwidth: float, num_ranks: int) -> float | None:
    """Bytes per second each rank's link would carry if a ring had done it, as nccl-tests has it.

    Absent for one rank, which sends nothing. For other algorithms than the ring it compares speed
    and is no link's load.
    """
    return algorithm_bandwidth * _sent_share(num_ranks) if num_ranks > 1 else None


def inter_node_bound(num_bytes: int, num_nodes: int) -> float:
    """The least bytes that a node must send in any all-reduce: 2(M-1)/M x S."""
    return _sent_share(num_nodes) * num_bytes


def relative_error(predicted: float, measured: float) -> float | None:
    """(predicted - measured) / measured; absent when nothing was measured."""
    return (predicted - measured) / measured if measured > 0 else None


def _sent_share(num_members: int) -> float:
    return 2 * (num_members - 1) / num_members


def _chunk_bytes(schedule: Schedule, numel: int, itemsize: int, segments: int) -> list[int]:
    """Bytes of each chunk, added up over the segments."""
    if segments < 1:
        raise UsageError(f"{segments} segments: at least one")
    num_bytes = [0] * schedule.num_chunks
    for segment in range(segments):
        start, end = chunk_bounds(numel, segments, segment)
        size, longer = divmod(end - start, schedule.num_chunks)
        for chunk in range(schedule.num_chunks):
            num_bytes[chunk] += itemsize * (size + (chunk < longer))
    return num_bytes


def _capacities(fabric: Fabric) -> list[Capacity]:
    """Every capacity of the occupied nodes; loads and totals are lists in this order."""
    nodes = sorted(set(fabric.node_of))
    return [(node, direction) for node in nodes for direction in _OUT_IN_INTRA]


def _stage_loads(
    schedule: Schedule, fabric: Fabric, chunk_bytes: Sequence[int]
) -> Iterator[list[int]]:
    """For each stage, the bytes on each capacity. Streams: one stage is in memory at a time."""
    if schedule.num_ranks != fabric.num_ranks:
        raise UsageError(
            f"a schedule for {schedule.num_ranks} ranks on a fabric of {fabric.num_ranks}"
        )
    capacities = _capacities(fabric)
    # ints, not (node, Direction) keys: hashing an enum would double the time of a large fabric
    out_of = [capacities.index((node, Direction.NIC_OUT)) for node in fabric.node_of]
    for stage in schedule:
        load = [0] * len(capacities)
        for sender, receiver, chunk, _ in stage:
            src, dst = out_of[sender], out_of[receiver]
            if src == dst:
                load[src + 2] += chunk_bytes[chunk]
            else:
                load[src] += chunk_bytes[chunk]
                load[dst + 1] += chunk_bytes[chunk]
        yield load


def _by_node(fabric: Fabric, totals: Sequence[int]) -> dict[int, NodeTraffic]:
    nodes = sorted(set(fabric.node_of))
    return {node: NodeTraffic(*totals[3 * i : 3 * i + 3]) for i, node in enumerate(nodes)}


def _link(fabric: Fabric, capacity: Capacity) -> Link:
    node, direction = capacity
    links = fabric.links[node]
    by_direction = {
        Direction.NIC_OUT: links.nic_out,
        Direction.NIC_IN: links.nic_in,
        Direction.INTRA: links.intra,
    }
    return by_direction[direction]
