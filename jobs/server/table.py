"""METRICS: every metric, a row each: name, kind, labels, what it says, and where it is read from.

The one source of what /metrics exposes and of the table in docs/metrics.md. A figure that is
undefined is None, and then it is absent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.server.totals import Histogram, RankTotals, RunTotals
from jobs.server.watched import RUNNING, RunView

PREFIX = "ddplab_"
COMMON = ("run_id", "job", "algorithm")
GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
EVERY, CLOSE = "every run", "running and last runs"
RANK, NODE = ("node", "rank"), ("node",)

Value = float | int | Histogram | None
Reading = tuple[tuple[str, ...], Value]


@dataclass(frozen=True)
class Metric:
    """`labels` are those besides run_id, job and algorithm; `read` yields (their values, value)."""

    name: str
    kind: str
    labels: tuple[str, ...]
    runs: str
    meaning: str
    read: Callable[[RunView], Iterable[Reading]]


def _one(value: Callable[[RunView], Value]) -> Callable[[RunView], Iterable[Reading]]:
    """One series a run."""
    return lambda run: [((), value(run))]


def _total(value: Callable[[RunTotals], Value]) -> Callable[[RunView], Iterable[Reading]]:
    """One series for each run whose records are read."""
    return _one(lambda run: value(run.totals) if run.totals else None)


def _figure(*keys: str) -> Callable[[RunView], Iterable[Reading]]:
    """A key of summary.json, which a running run has as well."""

    def find(run: RunView) -> Any:
        found: Any = run.summary
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return _one(find)


def _rank(value: Callable[[RankTotals], Value]) -> Callable[[RunView], Iterable[Reading]]:
    """One series a rank."""
    return lambda run: [((each.node, str(each.rank)), value(each)) for each in run.ranks]


def _ranks(
    values: Callable[[RankTotals], Mapping[str, Value]],
) -> Callable[[RunView], Iterable[Reading]]:
    """One series for each key of each rank."""
    return lambda run: [
        ((each.node, str(each.rank), key), value)
        for each in run.ranks
        for key, value in values(each).items()
    ]


def _nics(run: RunView) -> Iterable[Reading]:
    return [((it.node, key), value) for it in run.ranks for key, value in it.nic_bytes.items()]


def _links(run: RunView) -> Iterable[Reading]:
    return [
        ((link.node, link.direction, kind), getattr(link, kind))
        for link in run.links
        for kind in ("configured", "measured", "ceiling")
    ]


METRICS: tuple[Metric, ...] = (
    Metric(
        "run_info",
        GAUGE,
        (),
        EVERY,
        "1 for each run: its name, job and algorithm.",
        _one(lambda _: 1),
    ),
    Metric(
        "run_up",
        GAUGE,
        (),
        EVERY,
        "1 while the run goes on, 0 once it has ended.",
        _one(lambda run: int(run.state == RUNNING)),
    ),
    Metric(
        "steps_total",
        COUNTER,
        (),
        CLOSE,
        "Steps that all ranks have done; without warm-up and steps without network.",
        _total(lambda totals: totals.steps),
    ),
    Metric(
        "samples_total",
        COUNTER,
        (),
        CLOSE,
        "Samples trained on in those steps, by all ranks together.",
        _total(lambda totals: totals.samples),
    ),
    Metric(
        "step_duration_seconds",
        HISTOGRAM,
        (),
        CLOSE,
        "How long those steps took, each as long as its slowest rank.",
        _total(lambda totals: totals.step_s),
    ),
    Metric(
        "last_step_phase_seconds",
        GAUGE,
        (*RANK, "phase"),
        CLOSE,
        "Where the newest step of a rank went: data, forward, backward, comm_exposed, optimizer, "
        "other.",
        _ranks(lambda rank: rank.last_phase_s),
    ),
    Metric(
        "phase_seconds_total",
        COUNTER,
        (*RANK, "phase"),
        CLOSE,
        "Where a rank's time went in all steps; the six phases add up to its steps.",
        _ranks(lambda rank: rank.phase_s),
    ),
    Metric(
        "comm_busy_seconds_total",
        COUNTER,
        RANK,
        CLOSE,
        "Time in which gradients were being reduced, hidden behind computing or not. Absent where "
        "torch's own class reduces, which does not tell.",
        _rank(lambda rank: rank.comm_s["busy"]),
    ),
    Metric(
        "comm_exposed_seconds_total",
        COUNTER,
        RANK,
        CLOSE,
        "Time in which a rank did nothing but wait for peers: the phase comm_exposed.",
        _rank(lambda rank: rank.phase_s["comm_exposed"]),
    ),
    Metric(
        "comm_hidden_seconds_total",
        COUNTER,
        RANK,
        CLOSE,
        "The part of the busy time in which a rank did not wait. Absent where that is.",
        _rank(lambda rank: rank.comm_s["hidden"]),
    ),
    Metric(
        "straggler_wait_seconds_total",
        COUNTER,
        RANK,
        CLOSE,
        "The part of the exposed time in which some rank was not ready yet. Absent where busy time "
        "is.",
        _rank(lambda rank: rank.comm_s["straggler_wait"]),
    ),
    Metric(
        "comm_bytes_total",
        COUNTER,
        (*RANK, "scope"),
        CLOSE,
        "Bytes of gradients a rank sent, to ranks of its node (intra_node) and of others "
        "(inter_node). Absent where the backend does not tell (native).",
        _ranks(lambda rank: rank.sent_bytes),
    ),
    Metric(
        "nic_bytes_total",
        COUNTER,
        (*NODE, "direction"),
        CLOSE,
        "Bytes the fabric NIC of a node carried in those steps, headers included: out, in.",
        _nics,
    ),
    Metric(
        "link_rate_bytes_per_second",
        GAUGE,
        (*NODE, "direction", "kind"),
        CLOSE,
        "A node's link, out of it and into it: what it was set to, headers included (configured), "
        "what it carried when it was measured (measured), and the most it can carry (ceiling). A "
        "link that was changed since has no measured and no ceiling.",
        _links,
    ),
    Metric(
        "bus_bandwidth_bytes_per_second",
        GAUGE,
        (),
        EVERY,
        "Gradient bytes over busy time, times 2(N-1)/N for N ranks, as nccl-tests have it.",
        _figure("busbw_bytes_per_second"),
    ),
    Metric(
        "overlap_ratio",
        GAUGE,
        (),
        EVERY,
        "1 - exposed / busy: how much of communication was hidden behind computing.",
        _figure("overlap_ratio"),
    ),
    Metric(
        "baseline_step_seconds",
        GAUGE,
        (),
        EVERY,
        "Median step of the same computing with nothing sent.",
        _figure("baseline_step_seconds", "median"),
    ),
    Metric(
        "communication_efficiency_ratio",
        GAUGE,
        (),
        EVERY,
        "Baseline step / median step: 1 means that the network costs nothing.",
        _figure("communication_efficiency_ratio"),
    ),
    Metric(
        "scaling_efficiency_ratio",
        GAUGE,
        (),
        EVERY,
        "Throughput / (ranks x throughput of one rank), from make scale.",
        _figure("scaling_efficiency_ratio"),
    ),
    Metric(
        "predicted_step_seconds",
        GAUGE,
        (),
        EVERY,
        "The step as it was predicted from the measured links, before the first one.",
        _one(lambda run: (run.prediction or {}).get("step_seconds")),
    ),
    Metric(
        "last_step",
        GAUGE,
        RANK,
        CLOSE,
        "The newest step of a rank, the first being 1.",
        _rank(lambda rank: rank.last_step),
    ),
    Metric(
        "last_step_timestamp_seconds",
        GAUGE,
        RANK,
        CLOSE,
        "When the newest step of a rank ended, in seconds since 1970.",
        _rank(lambda rank: rank.last_ended_at),
    ),
)


def markdown() -> str:
    """The table of docs/metrics.md."""
    lines = [
        "| metric | kind | labels besides run_id, job, algorithm | of | meaning |",
        "|---|---|---|---|---|",
    ]
    for it in METRICS:
        labels = ", ".join(f"`{label}`" for label in it.labels) or "-"
        lines.append(f"| `{PREFIX}{it.name}` | {it.kind} | {labels} | {it.runs} | {it.meaning} |")
    return "\n".join(lines) + "\n"
