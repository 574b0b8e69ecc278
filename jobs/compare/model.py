"""What the cost model says of a run again, without torch: its least wait, and other link rates.

Owns the bound behind "at most". Everything priced comes from run.json and prediction.json, so it
was measured before the run's first step. What is answered is exposed communication, in seconds: how
long a step computes is better known from all runs that compute the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.shaping import burst_bytes
from ddp.cost import predict_step, price
from ddp.fabric import Fabric
from ddp.plan import ReductionPlan
from jobs.argument import NodeRates
from jobs.owncode import can_price
from jobs.predict import Compute, FixedCosts, predict, priced_fabric, priced_schedules

NEXT_RATES = (1_000_000_000, 10_000_000_000, 100_000_000_000)  # bits per second


@dataclass(frozen=True)
class PricedRun:
    """A run whose links were measured. `limits[node]` in bits per second, None: not limited."""

    plan: ReductionPlan
    compute: Compute
    links: tuple[NodeRates, ...]
    limits: tuple[int | None, ...]
    costs: FixedCosts
    overlap: bool
    barrier: bool

    @classmethod
    def of(cls, run: Mapping[str, Any], prediction: Mapping[str, Any] | None) -> "PricedRun | None":
        """None where nothing can be priced: no prediction, links that were never measured, a hook,
        an algorithm of one's own that is no longer there as it was."""
        inputs = (prediction or {}).get("inputs") or {}
        if not (inputs.get("links") and run.get("plan") and can_price(run["plan"])):
            return None
        compute = inputs["compute"]
        lists = {key: tuple(compute[key]) for key in ("bucket_bytes", "ready_s")}
        return cls(
            plan=ReductionPlan.from_json(run["plan"]),
            compute=Compute(**{**compute, **lists}),
            links=tuple(NodeRates.model_validate(node) for node in inputs["links"]),
            limits=tuple(node["rate_bits_per_s"] for node in run["lab"]["nodes"]),
            costs=FixedCosts.from_json(inputs["calibration"]),
            overlap=run["job"]["ddp"]["overlap"],
            barrier=run["job"]["ddp"].get("sync") == "barrier",
        )

    def least_exposed_s(self) -> float | None:
        """The wait if the busiest link, from the first gradient on, were never idle.

        What an idle link lets through at once before its limit holds (its burst) is free. None
        where no link between nodes was measured.
        """
        wire_s = self._wire_s()
        if wire_s is None:
            return None
        ready_s = self.compute.ready_s[:1] if wire_s else ()
        lasting_s = [wire_s] if wire_s else []
        compute = self.compute
        found = predict_step(compute.step_s, ready_s, lasting_s, compute.backward_s, self.overlap)
        return found.exposed_s * compute.num_reductions

    def exposed_s_at(self, rate_bits_per_s: int) -> float | None:
        """The predicted wait if every link between nodes were limited to this rate."""
        links = [
            _limited(node, limit, rate_bits_per_s) if limit else node
            for node, limit in zip(self.links, self.limits, strict=True)
        ]
        fabric = priced_fabric(self.plan.node_of, links, self.costs)
        if fabric is None:
            return None
        found = predict(
            self.plan,
            fabric,
            self.compute,
            overlap=self.overlap,
            barrier=self.barrier,
            costs=self.costs.algorithms,
        )
        return float(found["exposed_seconds"])

    def _wire_s(self) -> float | None:
        """How long the busiest link needs for the bytes of one reduction alone."""
        fabric = priced_fabric(self.plan.node_of, self.links, FixedCosts())
        if fabric is None or fabric.num_nodes == 1:
            return None
        return max(
            max(0.0, num_bytes - self._burst(node)) / rate
            for node, num_bytes, rate in self._loads(fabric)
        )

    def _loads(self, fabric: Fabric) -> list[tuple[int, int, float]]:
        """(node, bytes, bytes per second) of each direction of each NIC, over all buckets."""
        schedules = priced_schedules(self.plan)
        prices = [
            price(schedule, fabric, num_bytes, bucket.segments)
            for num_bytes, bucket in zip(self.compute.bucket_bytes, self.plan.buckets, strict=True)
            if (schedule := schedules[bucket.algorithm])
        ]
        loads = []
        for node in sorted(set(self.plan.node_of)):
            out = sum(each.traffic[node].out_bytes for each in prices)
            into = sum(each.traffic[node].in_bytes for each in prices)
            loads.append((node, out, fabric.links[node].nic_out.bytes_per_s))
            loads.append((node, into, fabric.links[node].nic_in.bytes_per_s))
        return loads

    def _burst(self, node: int) -> int:
        limit = self.limits[node]
        return burst_bytes(limit) if limit else 0


def faster_rate(limits: Sequence[int | None]) -> int | None:
    """The next usual rate above the slowest of these links; None where one is not limited."""
    known = [limit for limit in limits if limit]
    if not known or len(known) < len(limits):
        return None
    return next((rate for rate in NEXT_RATES if rate > min(known)), None)


def _limited(node: NodeRates, limit: int, rate_bits_per_s: int) -> NodeRates:
    """A node whose links are limited to another rate than now."""

    def times(rate: float | None) -> float | None:
        return rate * (rate_bits_per_s / limit) if rate else rate

    burst = None if node.burst_bytes is None else burst_bytes(rate_bits_per_s)
    return node.model_copy(
        update={
            "out_bytes_per_s": times(node.out_bytes_per_s),
            "in_bytes_per_s": times(node.in_bytes_per_s),
            "burst_bytes": burst,
        }
    )
