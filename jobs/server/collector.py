"""/metrics: a view over the runs, made anew for every scrape. Keeps nothing."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from jobs.server.store import Snapshot, Store
from jobs.server.table import COMMON, COUNTER, GAUGE, METRICS, PREFIX, Metric
from jobs.server.totals import Histogram
from jobs.server.watched import RunView


class RunsCollector(Collector):
    """What prometheus_client asks at a scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Family]:
        return self._store.look(families)

    def describe(self) -> Iterator[Family]:
        return iter(())


def families(snapshot: Snapshot) -> list[Family]:
    """Every metric that any run has; what is undefined is absent."""
    made = [_family(metric, snapshot.runs) for metric in METRICS]
    return [family for family in made if family.samples]


def finite(value: Any) -> float | None:
    """The value as a number; None for what is none, infinite or not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _family(metric: Metric, runs: Sequence[RunView]) -> Family:
    name, labels = PREFIX + metric.name, (*COMMON, *metric.labels)
    if metric.kind not in (COUNTER, GAUGE):
        return _histogram(metric, name, labels, runs)
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = kind(name, metric.meaning, labels=labels)
    for run in runs:
        common = (run.run_id, run.job, run.algorithm)
        for further, value in metric.read(run):
            number = finite(value)
            if number is not None:
                family.add_metric((*common, *further), number)
    return family


def _histogram(
    metric: Metric, name: str, labels: Sequence[str], runs: Sequence[RunView]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, metric.meaning, labels=labels)
    for run in runs:
        common = (run.run_id, run.job, run.algorithm)
        for further, value in metric.read(run):
            if isinstance(value, Histogram):
                family.add_metric((*common, *further), value.cumulative(), value.sum)
    return family
