"""Scaling arithmetic: one job at one size, held against the same job on one rank.

Owns what efficiency and lost time mean. Weak scaling keeps the samples of a rank, strong scaling
those of a step; the formulas take the samples as they were and so hold for both. Runs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from jobs.derive import baseline_rank_s
from jobs.figures import NOISY_BASELINE, RunFigures
from jobs.records import RankRecords


@dataclass(frozen=True)
class SizeFigures:
    """What was measured of one job at one size: means over the counted steps, in seconds.

    `step_s` is the slowest rank's, as STEP is everywhere; `samples` are those of one step over all
    ranks. Means over ranks: `no_network_s`, the steps with nothing sent; `network_s`, exposed
    communication less `slower_rank_s`, the wait for a slower rank. None where nothing was measured.
    `predicted_step_s` stood before the first of these steps; `spread` is their p90 / median, and
    `no_network_spread` that of the slowest rank's steps with nothing sent.
    """

    num_nodes: int
    num_ranks: int
    samples: float
    step_s: float
    spread: float
    no_network_s: float | None
    no_network_spread: float | None
    network_s: float | None
    slower_rank_s: float | None
    predicted_step_s: float | None

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.step_s


@dataclass(frozen=True)
class Lost:
    """How much longer than ideal a step takes, in seconds, and to what; the parts add up to it."""

    network_s: float
    slower_rank_s: float
    contention_s: float
    other_s: float

    @property
    def total_s(self) -> float:
        return self.network_s + self.slower_rank_s + self.contention_s + self.other_s


def size_figures(
    figures: RunFigures,
    ranks: Sequence[RankRecords],
    num_nodes: int,
    prediction: Mapping[str, Any] | None,
) -> SizeFigures | None:
    """The figures of one run; None where it has no counted step."""
    if figures.step is None:
        return None
    alone = figures.baseline
    return SizeFigures(
        num_nodes=num_nodes,
        num_ranks=len(ranks),
        samples=fmean(step.samples for step in figures.steps),
        step_s=figures.step.mean,
        spread=figures.step.p90 / figures.step.median,
        no_network_s=mean_no_network_s(ranks),
        no_network_spread=alone.p90 / alone.median if alone and alone.median else None,
        network_s=figures.network_wait_s,
        slower_rank_s=figures.straggler_wait_s,
        predicted_step_s=(prediction or {}).get("step_seconds"),
    )


def mean_no_network_s(ranks: Sequence[RankRecords]) -> float | None:
    """A step with nothing sent, mean over ranks and steps.

    Not the slowest rank's: what ranks wait for a slower one is counted apart, and only once.
    """
    steps = baseline_rank_s(ranks)
    return fmean(fmean(step) for step in steps) if steps else None


def withheld(one_rank: SizeFigures) -> str | None:
    """Why nothing can be held against one rank alone; None where it can."""
    return _varies("the steps of one rank alone", one_rank.spread)


def node_withheld(one_node: SizeFigures) -> str | None:
    """Why nothing can be held against one full node; None where it can."""
    steps = "the steps without network of one full node"
    if one_node.no_network_spread is None:
        return f"{steps} were not measured: nothing shows how much they vary"
    return _varies(steps, one_node.no_network_spread)


def _varies(steps: str, spread: float) -> str | None:
    if spread <= NOISY_BASELINE:
        return None
    return (
        f"{steps} vary too much to compare with: p90 / median is {spread:.3f}, at most "
        f"{NOISY_BASELINE} is used"
    )


def efficiency(size: SizeFigures, one_rank: SizeFigures) -> float:
    """throughput(N) / (N x throughput(1 rank))."""
    return size.samples_per_s / (size.num_ranks * one_rank.samples_per_s)


def node_efficiency(size: SizeFigures, one_node: SizeFigures) -> float:
    """throughput(M nodes) / (M x throughput(1 full node))."""
    return size.samples_per_s / (size.num_nodes * one_node.samples_per_s)


def predicted_efficiency(size: SizeFigures, one_rank: SizeFigures) -> float | None:
    """What `efficiency` would be if a step took as long as was predicted before the first one."""
    if not size.predicted_step_s:
        return None
    samples_per_s = size.samples / size.predicted_step_s
    return samples_per_s / (size.num_ranks * one_rank.samples_per_s)


def ideal_step_s(size: SizeFigures, one_rank: SizeFigures) -> float:
    """The step of this size at 100 %: a rank's samples at the speed of one rank alone."""
    return one_rank.step_s * _share(size, one_rank)


def lost(size: SizeFigures, one_rank: SizeFigures) -> Lost | None:
    """Where the time above the ideal step goes; None where a part was not measured.

    Contention is what computing takes longer although nothing is sent: ranks that share cores and
    memory, and in strong scaling also work that does not get less with the samples.
    """
    parts = (size.network_s, size.slower_rank_s, size.no_network_s, one_rank.no_network_s)
    if any(part is None for part in parts):
        return None
    network_s, slower_rank_s, no_network_s, alone_s = (float(part or 0.0) for part in parts)
    contention_s = no_network_s - alone_s * _share(size, one_rank)
    total_s = size.step_s - ideal_step_s(size, one_rank)
    other_s = total_s - network_s - slower_rank_s - contention_s
    return Lost(network_s, slower_rank_s, contention_s, other_s)


def _share(size: SizeFigures, one_rank: SizeFigures) -> float:
    """A rank's samples here, of those that one rank alone has: 1 in weak scaling."""
    return size.samples / (size.num_ranks * one_rank.samples)
