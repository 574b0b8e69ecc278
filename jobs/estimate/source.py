"""Where a prediction's figures come from: what was typed, an example, or a run that has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.units import parse_duration, parse_rate
from ddp.closed import Uniform
from ddp.fabric import Link, NodeLinks
from jobs.errors import JobError
from jobs.estimate.amounts import AmountError, item_bytes, parse_bytes, parse_parameters
from jobs.estimate.estimate import Asked, Buckets

EXAMPLE = {
    "parameters": "7b",
    "dtype": "bfloat16",
    "nodes": 2,
    "ranks_per_node": 8,
    "rate": "25GB/s",
    "intra_rate": "900GB/s",
    "compute": "0.5s",
}
"""A model of 7 billion parameters on two machines of eight GPUs: the notes' figures."""
USUAL = {
    "dtype": "float32",
    "nodes": 2,
    "ranks_per_node": 2,
    "nics": 1,
    "latency": "0us",
    "intra_latency": "0us",
    "overlap": 2 / 3,
}
"""A backward takes two thirds of computing, and communication hides behind it."""
MOST_NODES, MOST_RANKS, MOST_NICS = 1_000_000, 1_024, 64


@dataclass(frozen=True)
class Figures:
    """What is asked, and what it was made from, as people read it."""

    asked: Asked
    texts: Mapping[str, Any]


def figures(typed: Mapping[str, Any], example: bool, run: Mapping[str, Any] | None) -> Figures:
    """`typed` holds what was typed, which goes before the example and the run. Raises JobError."""
    base = EXAMPLE if example else {}
    given = {**USUAL, **base, **{k: v for k, v in typed.items() if v is not None}}
    if run is not None:
        shape = {"nodes": run["run"]["nnodes"], "ranks_per_node": run["run"]["nproc_per_node"]}
        given |= {name: size for name, size in shape.items() if typed.get(name) is None}
    cluster = Uniform(
        _counted(given, "nodes", MOST_NODES),
        _counted(given, "ranks_per_node", MOST_RANKS),
        _links(given, run),
        _counted(given, "nics", MOST_NICS),
        parse_rate(str(given["intra_rate"]), most=None) / 8 if "intra_rate" in given else None,
    )
    compute_s = _compute_s(given, run)
    overlap = float(given["overlap"])
    if not 0 <= overlap <= 1:
        raise AmountError(
            f"OVERLAP={overlap:g}",
            rule="the share of computing behind which communication can hide, from 0 to 1",
            fix="OVERLAP=0.67 (backward), 0 (nothing hides) or 1 (everything)",
        )
    buckets = _buckets(typed, compute_s, run) if run is not None else None
    if buckets is not None:
        overlap = buckets.backward_s / compute_s
    carried_ratio = _carried_ratio(run) if run is not None and typed.get("rate") else None
    num_bytes = _gradient_bytes(given, run)
    asked = Asked(num_bytes, cluster, compute_s, overlap, buckets, carried_ratio)
    return Figures(asked, given)


def _buckets(typed: Mapping[str, Any], compute_s: float, run: Mapping[str, Any]) -> Buckets | None:
    """The run's, in a step that computes for `compute_s`. None where something else was typed, or
    the run reduced them more than once a step."""
    if any(typed.get(name) is not None for name in ("overlap", "bytes", "parameters")):
        return None
    compute = run["prediction"]["inputs"]["compute"]
    if compute.get("num_reductions") != 1:
        return None
    times = compute_s / compute["step_s"]
    return Buckets(
        tuple(compute["bucket_bytes"]),
        tuple(ready_s * times for ready_s in compute["ready_s"]),
        compute["backward_s"] * times,
        bool(run["run"]["job"]["ddp"]["overlap"]),
    )


def _carried_ratio(run: Mapping[str, Any]) -> float | None:
    """None where no link had a limit, or none was measured."""
    nodes = run["run"].get("lab", {}).get("nodes", ())
    links = run["prediction"]["inputs"]["links"] or ()
    ratios = [
        carried * 8 / limit
        for node, link in zip(nodes, links, strict=False)
        for carried in (link["out_bytes_per_s"], link["in_bytes_per_s"])
        if carried and (limit := node.get("rate_bits_per_s"))
    ]
    return min(ratios, default=None)


def _counted(given: Mapping[str, Any], name: str, most: int) -> int:
    value, variable = int(given[name]), name.upper()
    if not 1 <= value <= most:
        raise AmountError(f"{variable}={value}", rule=f"from 1 to {most:,}", fix=f"{variable}=2")
    return value


def _gradient_bytes(given: Mapping[str, Any], run: Mapping[str, Any] | None) -> int:
    if "bytes" in given and "parameters" in given:
        raise AmountError(
            f"BYTES={given['bytes']} and PARAMETERS={given['parameters']}",
            rule="one of them says how much is reduced",
            fix="leave one out",
        )
    if "bytes" in given:
        return parse_bytes(str(given["bytes"]))
    if "parameters" in given:
        return parse_parameters(str(given["parameters"])) * item_bytes(str(given["dtype"]))
    if run is not None:
        return int(sum(run["prediction"]["inputs"]["compute"]["bucket_bytes"]))
    raise AmountError(
        "how much is reduced is not said",
        rule="PARAMETERS with DTYPE, or BYTES: the gradients of one rank",
        fix=("PARAMETERS=7b DTYPE=bfloat16", "EXAMPLE=1", "CALIBRATE=latest"),
    )


def _compute_s(given: Mapping[str, Any], run: Mapping[str, Any] | None) -> float:
    if "compute" in given:
        seconds = parse_duration(str(given["compute"]))
        if seconds <= 0:
            raise AmountError(f"COMPUTE={given['compute']}", rule="above 0", fix="COMPUTE=0.5s")
        return seconds
    if run is not None:
        return float(run["prediction"]["inputs"]["compute"]["step_s"])
    raise AmountError(
        "how long a step computes is not said",
        rule="COMPUTE is a step of one rank with nothing sent",
        fix=("COMPUTE=0.5s", "CALIBRATE=latest"),
    )


def _links(given: Mapping[str, Any], run: Mapping[str, Any] | None) -> NodeLinks:
    """INTRA_RATE is a rank's own; what a run measured is the node's, which its ranks share."""
    measured = _measured(run) if run is not None else {}
    rates = {}
    for name, key in (("rate", "nic"), ("intra_rate", "intra")):
        if name in given:
            rates[name] = parse_rate(str(given[name]), most=None) / 8
        elif key in measured:
            rates[name] = measured[key]
        else:
            raise AmountError(
                f"{name.upper()} is not said",
                rule="what one NIC carries, and what one rank sends inside its node",
                fix=(f"{name.upper()}=25GB/s", "CALIBRATE=latest"),
            )
    nic = Link(_latency(given, "latency", measured), rates["rate"])
    inside = Link(_latency(given, "intra_latency", measured), rates["intra_rate"])
    return NodeLinks(nic, nic, inside)


def _latency(given: Mapping[str, Any], name: str, measured: Mapping[str, float]) -> float:
    if given[name] == USUAL[name] and name in measured:
        return measured[name]
    return parse_duration(str(given[name]))


def _measured(run: Mapping[str, Any]) -> dict[str, float]:
    """What a run measured of its own links before it trained: the slowest NIC, both latencies."""
    inputs = run["prediction"]["inputs"]
    nics = [
        rate
        for link in inputs["links"] or ()
        for rate in (link["out_bytes_per_s"], link["in_bytes_per_s"])
        if rate
    ]
    calibration = inputs["calibration"] or {}
    found = {
        "nic": min(nics, default=None),
        "intra": calibration.get("intra_bytes_per_s"),
        "latency": calibration.get("alpha_inter_s"),
        "intra_latency": calibration.get("alpha_intra_s"),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


class NotCalibrated(JobError):
    """A run that has no figures of its own to predict from."""

    kind = "calibrate"
