"""Mean, median and spread of a sample: one definition for every table and file."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A sample in short; percentiles interpolate linearly between its values."""

    mean: float
    median: float
    p10: float
    p90: float
    n: int


def spread(values: Sequence[float]) -> Spread | None:
    """None where there is no value."""
    if not values:
        return None
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], values[0], 1)
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(
        mean=statistics.fmean(values),
        median=statistics.median(values),
        p10=tenths[0],
        p90=tenths[8],
        n=len(values),
    )
