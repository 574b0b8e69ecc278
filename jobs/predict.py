"""The prediction of a run, made before its first measured step and never changed.

Owns where each input of the cost model comes from: rates from the probe, fixed costs from the
calibration, computing from the first steps without network. Nothing of it is a measured step.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from ddp.algorithms import ring_schedule
from ddp.cost import Price, StepPrediction, predict_step
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.fixed import FixedCost, price_of
from ddp.plan import ReductionPlan
from ddp.schedule import Schedule
from jobs.argument import NodeRates

if TYPE_CHECKING:
    from ddp.calibrate import Calibration  # needs torch; whoever prices a run again does not
    from jobs.sections import DdpSpec

PREDICTION = "prediction.json"
UNLIMITED = float("inf")
GLOO_SEGMENTS = 2  # so many parts of a buffer are in flight in gloo's own ring


class Calibrated(Protocol):
    """What ddp.calibrate measures, also as it is read back from prediction.json."""

    @property
    def alpha_inter_s(self) -> float | None: ...

    @property
    def alpha_intra_s(self) -> float | None: ...

    @property
    def intra_bytes_per_s(self) -> float | None: ...


@dataclass(frozen=True)
class FixedCosts:
    """A calibration as it is read back; as it stands, of a fabric where nothing was measured."""

    alpha_inter_s: float | None = None
    alpha_intra_s: float | None = None
    intra_bytes_per_s: float | None = None
    algorithms: Mapping[str, FixedCost] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "FixedCosts":
        """As prediction.json has it; older ones do not tell of algorithms, or more of each."""
        timed = document.get("algorithms", {})
        known = {each.name for each in fields(FixedCost)}
        costs = {
            name: FixedCost(**{key: value for key, value in cost.items() if key in known})
            for name, cost in timed.items()
        }
        return cls(**{**document, "algorithms": costs})


@dataclass(frozen=True)
class ComputeStep:
    """One step without network on one rank; `ready_s` counts from the start of its backward.

    Where micro-steps are reduced one by one, `num_reductions` of them, backward is the last one's.
    """

    step_s: float
    backward_s: float
    bucket_bytes: tuple[int, ...]
    ready_s: tuple[float, ...]
    num_reductions: int = 1


@dataclass(frozen=True)
class Compute:
    """What computing takes when nothing is sent: the slowest rank's, median over the steps."""

    step_s: float
    backward_s: float
    bucket_bytes: tuple[int, ...]
    ready_s: tuple[float, ...]
    num_steps: int
    num_reductions: int = 1


def slowest_rank(ranks: Sequence[Sequence[ComputeStep]]) -> Compute:
    """`ranks[rank]` lists the same steps of every rank; a bucket waits for the last rank."""
    steps = list(zip(*ranks, strict=True))
    buckets = range(len(steps[0][0].ready_s))
    return Compute(
        step_s=median(max(rank.step_s for rank in step) for step in steps),
        backward_s=median(max(rank.backward_s for rank in step) for step in steps),
        bucket_bytes=steps[0][0].bucket_bytes,
        ready_s=tuple(
            median(max(rank.ready_s[bucket] for rank in step) for step in steps)
            for bucket in buckets
        ),
        num_steps=len(steps),
        num_reductions=steps[0][0].num_reductions,
    )


def known_fabric(node_of: Sequence[int], links: Sequence[NodeRates] | None) -> Fabric:
    """The fabric with the rates of its links, where all that are used were measured."""
    return priced_fabric(node_of, links, FixedCosts()) or Fabric(tuple(node_of))


def priced_fabric(
    node_of: Sequence[int], links: Sequence[NodeRates] | None, calibration: Calibrated
) -> Fabric | None:
    """The fabric with what its links carry; None where a link that is used was never measured."""
    placement = Fabric(tuple(node_of))
    if placement.num_nodes > 1 and (
        links is None
        or any(node.out_bytes_per_s is None or node.in_bytes_per_s is None for node in links)
    ):
        return None
    unknown = NodeRates(out_bytes_per_s=None, in_bytes_per_s=None, intra_bytes_per_s=None)
    rates = links or [unknown] * (max(node_of) + 1)
    return Fabric(placement.node_of, tuple(_node_links(node, calibration) for node in rates))


def _node_links(rates: NodeRates, calibration: Calibrated) -> NodeLinks:
    inter_s = calibration.alpha_inter_s or 0.0  # None where nothing is sent there
    intra_s = calibration.alpha_intra_s or 0.0
    intra = calibration.intra_bytes_per_s or rates.intra_bytes_per_s
    burst_bytes = rates.burst_bytes or 0
    return NodeLinks(
        nic_out=Link(inter_s, rates.out_bytes_per_s or UNLIMITED, burst_bytes),
        nic_in=Link(inter_s, rates.in_bytes_per_s or UNLIMITED, burst_bytes),
        intra=Link(intra_s, intra or UNLIMITED),
    )


def predict(
    plan: ReductionPlan,
    fabric: Fabric,
    compute: Compute,
    *,
    overlap: bool,
    barrier: bool = False,
    costs: Mapping[str, FixedCost] | None = None,
) -> dict[str, Any]:
    """The document that prediction.json holds, without its inputs. `barrier`: one ends the step;
    `costs`: of algorithms that were timed, where those of links are not for them."""
    prices = _prices(plan, fabric, compute, overlap, costs or {})
    seconds = [each.seconds if each else 0.0 for each in prices]
    step = predict_step(compute.step_s, compute.ready_s, seconds, compute.backward_s, overlap)
    more_s = barrier_s(fabric) if barrier else 0.0
    step = _repeated(step, compute, more_s)
    held = max((each for each in prices if each), key=lambda each: each.seconds, default=None)
    bottleneck = held.bottleneck if held else None
    return {
        "step_seconds": step.step_s,
        "comm_seconds": step.communication_s,
        "exposed_seconds": step.exposed_s,
        "full_overlap_step_seconds": step.full_overlap_step_s,
        "no_overlap_step_seconds": step.no_overlap_step_s,
        "bottleneck": {"node": bottleneck[0], "direction": bottleneck[1]} if bottleneck else None,
        "bucket_seconds": seconds,
    }


def _repeated(step: StepPrediction, compute: Compute, more_s: float) -> StepPrediction:
    """The step where each of several reductions is awaited before what follows is computed.

    `more_s`: communication after backward, which nothing hides.
    """
    exposed_s = step.exposed_s * compute.num_reductions + more_s
    communication_s = step.communication_s * compute.num_reductions + more_s
    return StepPrediction(
        step_s=compute.step_s + exposed_s,
        communication_s=communication_s,
        exposed_s=exposed_s,
        full_overlap_step_s=max(compute.step_s, communication_s),
        no_overlap_step_s=compute.step_s + communication_s,
    )


def barrier_s(fabric: Fabric) -> float:
    """gloo's barrier of ranks that come at once: each hears of a rank, of two, of four, ..."""
    num_rounds = (fabric.num_ranks - 1).bit_length()
    return num_rounds * max(
        node.nic_out.alpha_s if fabric.num_nodes > 1 else node.intra.alpha_s
        for node in fabric.links
    )


def _prices(
    plan: ReductionPlan,
    fabric: Fabric,
    compute: Compute,
    overlap: bool,
    costs: Mapping[str, FixedCost],
) -> list[Price | None]:
    """One bucket after another: what one leaves of a link's burst, and what passes until the next
    is ready, is the next one's. The first finds what came back since the step before."""
    schedules = priced_schedules(plan)
    prices: list[Price | None] = []
    share, ended_s = 0.0, compute.backward_s - compute.step_s
    for num_bytes, bucket, ready_s in zip(
        compute.bucket_bytes, plan.buckets, compute.ready_s, strict=True
    ):
        schedule = schedules[bucket.algorithm]
        if schedule is None:
            prices.append(None)
            continue
        starts_s = max(ended_s, ready_s if overlap else compute.backward_s)
        burst_s = _burst_s(fabric)
        share = min(1.0, share + (starts_s - ended_s) / burst_s) if burst_s else 0.0
        segments = GLOO_SEGMENTS if bucket.algorithm == "native" else bucket.segments
        cost = costs.get(bucket.algorithm)
        found = price_of(cost, schedule, fabric, num_bytes, segments, share)
        share = max(0.0, share - _wire_s(found, fabric) / burst_s) if burst_s else 0.0
        ended_s = starts_s + found.seconds
        prices.append(found)
    return prices


def _burst_s(fabric: Fabric) -> float:
    """How long a NIC must be idle until a whole burst may pass: the slowest one."""
    nics = [link for node in fabric.links for link in (node.nic_out, node.nic_in)]
    return max((link.burst_bytes / link.bytes_per_s for link in nics), default=0.0)


def _wire_s(found: Price, fabric: Fabric) -> float:
    """How long the busiest NIC sends or receives."""
    return max(
        seconds
        for node, traffic in found.traffic.items()
        for seconds in (
            traffic.out_bytes / fabric.links[node].nic_out.bytes_per_s,
            traffic.in_bytes / fabric.links[node].nic_in.bytes_per_s,
        )
    )


def priced_schedules(plan: ReductionPlan) -> dict[str, Schedule | None]:
    """By algorithm, what its all-reduce sends stage by stage; None where nothing is sent."""
    gloos = ring_schedule(range(len(plan.node_of)))  # one ring in rank order
    return {name: gloos if name == "native" else plan.schedule(name) for name in plan.algorithms}


def why_unpredicted(spec: "DdpSpec", plan: ReductionPlan | None, *, on_gpu: bool = False) -> str:
    """Why a run without a prediction has none; its plan is missing only with torch's own class."""
    if on_gpu:
        return "how NCCL moves bytes between GPUs was not measured"
    if spec.hook is not None:
        return "what a hook sends is not known beforehand"
    if plan is not None:
        return "the links were not measured"
    if spec.algorithm == "native":
        return "torch's own class does not tell how it reduces"
    return "torch's class makes its buckets in two steps, and train.warmup_steps is fewer"


def prediction_document(
    prediction: dict[str, Any] | str,
    compute: Compute,
    links: Sequence[NodeRates] | None,
    calibration: "Calibration | None",
) -> dict[str, Any]:
    """What prediction.json holds. Without a prediction it tells why."""
    if isinstance(prediction, str):
        prediction = {"step_seconds": None, "comm_seconds": None, "reason": prediction}
    return {
        "schema": 1,
        **prediction,
        "inputs": {
            "compute": asdict(compute),
            "links": [node.model_dump() for node in links] if links else None,
            "calibration": asdict(calibration) if calibration else None,
        },
    }


def write_prediction(run_dir: Path, document: Mapping[str, Any]) -> None:
    """Writes prediction.json, whole or not at all."""
    path = run_dir / PREDICTION
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        json.dump(document, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
