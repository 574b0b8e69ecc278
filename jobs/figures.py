"""What a whole run comes to: means over ranks and steps, spreads, bytes. Plain data, no words.

Derived from the records alone, so that it can be made of a run that is still going or was killed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from jobs.derive import PHASES, StepFigures, baseline_step_s, complete_steps, step_figures
from jobs.records import RankRecords
from jobs.spread import Spread, spread

LEAST_COUNTED = 0.94  # of the payload: below it the bytes took another road than the fabric NIC
NOISY_BASELINE = 1.3  # p90 / median above which a baseline compares with nothing


@dataclass(frozen=True)
class RunFigures:
    """The measured steps of a run, warm-up and baseline left out of them.

    Means over ranks and steps, in seconds and bytes per step; None where there is nothing to
    average or a rank could not tell. Per node: `inter_node_bytes` and `nic_tx_bytes`, sent.
    `link_carried` tells whether each node's NIC counted what its ranks sent in the whole run.
    `straggler_wait_s` is None where exposed communication cannot be told from it.
    `communicated` is False where nothing was sent at all, so that no rate is made of noise.
    """

    steps: tuple[StepFigures, ...]
    step: Spread | None
    baseline: Spread | None
    phase_s: Mapping[str, float] | None
    comm_work_s: float | None
    comm_busy_s: float | None
    straggler_wait_s: float | None
    hidden_s: float | None
    time_lost_s: float
    held_up_by: int | None
    inter_node_bytes: tuple[float | None, ...]
    nic_tx_bytes: tuple[float | None, ...]
    gradient_bytes: int | None
    link_carried: bool | None
    communicated: bool
    samples_per_s: float | None

    @property
    def exposed_s(self) -> float | None:
        """Waiting for other ranks: for the network, or for a slower one."""
        return None if self.phase_s is None else self.phase_s["comm_exposed"]

    @property
    def network_wait_s(self) -> float | None:
        """Exposed communication less what was spent waiting for a slower rank."""
        if self.phase_s is None or self.straggler_wait_s is None:
            return None
        return max(0.0, self.phase_s["comm_exposed"] - self.straggler_wait_s)

    @property
    def overlap_ratio(self) -> float | None:
        """1 - exposed / busy, at least 0; None where there was no communication."""
        if self.phase_s is None or not self.communicated or not self.comm_busy_s:
            return None
        return max(0.0, 1 - self.phase_s["comm_exposed"] / self.comm_busy_s)

    @property
    def efficiency(self) -> float | None:
        """Median step without network / median step; None where undefined or withheld."""
        if self.step is None or self.baseline is None or self.efficiency_withheld:
            return None
        return self.baseline.median / self.step.median if self.step.median else None

    @property
    def efficiency_withheld(self) -> str | None:
        """Why there is no efficiency although a baseline was measured."""
        if self.baseline is None:
            return None
        if not self.baseline.median:
            return "the steps without network took no time"
        if self.baseline.p90 <= NOISY_BASELINE * self.baseline.median:
            return None
        ratio = self.baseline.p90 / self.baseline.median
        return (
            f"the steps without network vary too much to compare with: p90 / median is "
            f"{ratio:.3f}, at most {NOISY_BASELINE} is used"
        )


def run_figures(ranks: Sequence[RankRecords], node_of: Sequence[int]) -> RunFigures:
    """`ranks[rank]` are the records of every rank; only steps that all of them have count."""
    steps = tuple(step_figures(records, node_of) for records in complete_steps(ranks))
    return figures_of_steps(steps, ranks, node_of)


def figures_of_steps(
    steps: tuple[StepFigures, ...], ranks: Sequence[RankRecords], node_of: Sequence[int]
) -> RunFigures:
    """The same, for a reader that has kept the steps' figures but not their records."""
    step = spread([figures.step_s for figures in steps])
    num_nodes = max(node_of) + 1
    return RunFigures(
        steps=steps,
        step=step,
        baseline=spread(baseline_step_s(ranks)),
        phase_s=_phase_means(steps),
        comm_work_s=_mean([figures.comm_work_s for figures in steps]),
        comm_busy_s=_mean([figures.comm_busy_s for figures in steps]),
        straggler_wait_s=_mean([figures.straggler_wait_s for figures in steps]),
        hidden_s=_mean([figures.hidden_s for figures in steps]),
        time_lost_s=max((figures.time_lost_s for figures in steps), default=0.0),
        held_up_by=_most_waited_for(steps),
        inter_node_bytes=tuple(
            _mean([figures.inter_node_bytes[node] for figures in steps])
            for node in range(num_nodes)
        ),
        nic_tx_bytes=tuple(
            _mean([figures.nic_tx_bytes[node] for figures in steps]) for node in range(num_nodes)
        ),
        gradient_bytes=_gradient_bytes(ranks, steps),
        link_carried=_link_carried(ranks, node_of),
        communicated=any(_sent_something(figures) for figures in steps),
        samples_per_s=_samples_per_s(steps),
    )


def busiest(per_node: Sequence[float | None]) -> float | None:
    """The largest of all nodes; None when any node is unknown."""
    known = [value for value in per_node if value is not None]
    return max(known) if known and len(known) == len(per_node) else None


def _link_carried(ranks: Sequence[RankRecords], node_of: Sequence[int]) -> bool | None:
    """Over the whole run, as each rank counts it at its end; None where one cannot tell."""
    sent: dict[int, int] = {}
    counted: dict[int, int] = {}
    for node, rank in zip(node_of, ranks, strict=True):
        end = rank.end or {}
        if end.get("inter_node_bytes") is None:
            return None
        sent[node] = sent.get(node, 0) + int(end["inter_node_bytes"])
        if end.get("nic_tx_bytes") is not None:
            counted[node] = int(end["nic_tx_bytes"])
    if counted.keys() != sent.keys():
        return None
    return all(counted[node] >= LEAST_COUNTED * sent[node] for node in sent)


def _gradient_bytes(ranks: Sequence[RankRecords], steps: Sequence[StepFigures]) -> int | None:
    """What a rank says it reduces; else its buckets, which carry a few bytes of status more."""
    for rank in ranks:
        if rank.header and "gradient_bytes" in rank.header:
            return int(rank.header["gradient_bytes"])
    told = [figures.bucket_bytes for figures in steps if figures.bucket_bytes is not None]
    return max(told, default=None)


def _most_waited_for(steps: Sequence[StepFigures]) -> int | None:
    waited_s: dict[int, float] = {}
    for figures in steps:
        for rank, seconds in figures.held_up_by.items():
            waited_s[rank] = waited_s.get(rank, 0.0) + seconds
    return max(waited_s, key=lambda rank: waited_s[rank], default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _phase_means(steps: Sequence[StepFigures]) -> dict[str, float] | None:
    if not steps:
        return None
    return {phase: fmean(figures.phase_s[phase] for figures in steps) for phase in PHASES}


def _sent_something(figures: StepFigures) -> bool:
    sent = (*figures.intra_node_bytes, *figures.inter_node_bytes)
    return any(value is None or value > 0 for value in sent)


def _samples_per_s(steps: Sequence[StepFigures]) -> float | None:
    seconds = sum(figures.step_s for figures in steps)
    return sum(figures.samples for figures in steps) / seconds if seconds else None
