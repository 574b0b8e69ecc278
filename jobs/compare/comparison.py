"""What several runs of the same training come to, side by side: speeds, bytes, losses, checks.

Owns the rows of the table and what is checked between jobs. Runs nothing; the interval is
`stats`', the bound and other link rates are `model`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jobs.compare.model import PricedRun, faster_rate
from jobs.compare.stats import Estimate, Rounds, speed_up
from jobs.derive import baseline_step_s
from jobs.figures import NOISY_BASELINE, RunFigures
from jobs.modelwords import num_reductions
from jobs.records import RankRecords
from jobs.spread import Spread, spread

NO_NETWORK = "no network"
BLOCK_STEPS = 10  # of runs that did not take turns: so many steps stand for a round
LOSS_TOLERANCE = 1e-3  # of the loss: adding floats in another order moves it by far less


@dataclass(frozen=True)
class ComparedRun:
    """One run as it is compared; `label` names its row, and no other one's."""

    label: str
    run: Mapping[str, Any]
    summary: Mapping[str, Any]
    figures: RunFigures
    ranks: Sequence[RankRecords]
    prediction: Mapping[str, Any] | None

    @property
    def step(self) -> Spread:
        """Its counted steps; only runs that came to their end are compared, so there are some."""
        assert self.figures.step is not None
        return self.figures.step

    @property
    def trains_together(self) -> bool:
        """False where nothing is reduced, so that every rank trains a model of its own."""
        return not self.run["job"]["expects_divergence"]

    @property
    def model_file_sha256(self) -> str | None:
        """Of the file of one's own that made the model; None where it is one of ours."""
        return (self.run.get("model_file") or {}).get("sha256")

    @property
    def rounds(self) -> Rounds:
        """The seconds of its steps, turn by turn."""
        turns = self.run.get("turns")
        steps = [step.step_s for step in self.figures.steps]
        size = turns["steps_per_turn"] if turns else BLOCK_STEPS
        blocks = [steps[start : start + size] for start in range(0, len(steps), size)]
        if len(blocks) > 1 and len(blocks[-1]) < size:
            blocks[-2:] = [blocks[-2] + blocks[-1]]
        return blocks

    @cached_property
    def priced(self) -> PricedRun | None:
        return PricedRun.of(self.run, self.prediction)


@dataclass(frozen=True)
class Row:
    """One line of the table. `speed_up` is relative to the base, 1 of the base itself.

    `at_most` is None where it cannot be reckoned: links that were not measured, noisy computing.
    """

    it: ComparedRun
    speed_up: Estimate
    at_most: float | None

    @property
    def sent_bytes(self) -> tuple[float, bool] | None:
        """What the busiest node sent a step, and whether its NIC had to be asked."""
        payload = self.it.summary["inter_node_bytes_per_step"]
        counted = self.it.summary["nic_tx_bytes_per_step"]
        if payload is not None:
            return float(payload), False
        return None if counted is None else (float(counted), True)


@dataclass(frozen=True)
class Forecast:
    """Predicted steps at another rate of the links between nodes: label -> seconds."""

    rate_bits_per_s: int
    step_s: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Rows by ascending step; `together`: all took turns within one set of ranks.

    `no_network` are the steps with nothing sent, of all runs as one where they compute the same.
    """

    base: str
    rows: Sequence[Row]
    together: bool
    no_network: Mapping[str, Spread]
    forecast: Forecast | None
    losses: "Losses"
    faults: Sequence[str]

    def row(self, label: str) -> Row:
        return next(row for row in self.rows if row.it.label == label)

    @property
    def contenders(self) -> Sequence[Row]:
        """The rows of jobs that train one model together, fastest first."""
        return [row for row in self.rows if row.it.trains_together]

    def against(self, one: str, other: str) -> Estimate:
        """How many times as fast `one` is as `other`."""
        return _speed_up(self.row(other).it, self.row(one).it)


@dataclass(frozen=True)
class Losses:
    """The loss of each job that trains together, after `step` counted steps: the last they share.

    `apart` is the largest relative difference between two jobs at any step they share; None where
    there is nothing to compare.
    """

    step: int
    last: Mapping[str, float]
    apart: float | None


def compare(runs: Sequence[ComparedRun], base: str, *, alike: bool) -> Comparison:
    """`alike`: all runs are the same training, so that their losses can be held together."""
    by_label = {each.label: each for each in runs}
    no_network = _no_network(runs, alike)
    common = _steady(no_network.get(NO_NETWORK))
    rows = [
        _row(by_label[base], each, common if alike else _steady(each.figures.baseline))
        for each in runs
    ]
    losses = _losses(runs) if alike else Losses(0, {}, None)
    exact = [each for each in runs if not each.run["job"]["ddp"].get("hook")]  # which may round
    return Comparison(
        base=base,
        rows=sorted(rows, key=lambda row: row.it.step.mean),
        together=_together(runs),
        no_network=no_network,
        forecast=_forecast(runs, common) if common else None,
        losses=losses,
        faults=[*_loss_fault(_losses(exact) if alike else losses), *_bit_faults(exact)],
    )


def _row(base: ComparedRun, job: ComparedRun, no_network: Spread | None) -> Row:
    estimate = Estimate(1.0, None, None) if job is base else _speed_up(base, job)
    exposed_s = job.priced.least_exposed_s() if job.priced else None
    if exposed_s is None or no_network is None:
        return Row(job, estimate, None)
    return Row(job, estimate, base.step.mean / (no_network.mean + exposed_s))


def _steady(steps: Spread | None) -> Spread | None:
    """The steps without network, unless they vary so much that nothing can be built on them."""
    return steps if steps and steps.p90 <= NOISY_BASELINE * steps.median else None


def _no_network(runs: Sequence[ComparedRun], alike: bool) -> dict[str, Spread]:
    own = {f"{NO_NETWORK}, {each.label}": baseline_step_s(each.ranks) for each in runs}
    if alike:
        own = {NO_NETWORK: [seconds for steps in own.values() for seconds in steps]}
    return {name: found for name, steps in own.items() if (found := spread(steps))}


def _speed_up(base: ComparedRun, job: ComparedRun) -> Estimate:
    return speed_up(base.rounds, job.rounds, paired=_together([base, job]))


def _together(runs: Sequence[ComparedRun]) -> bool:
    groups = {(each.run.get("turns") or {}).get("group") for each in runs}
    return len(groups) == 1 and None not in groups


def _losses(runs: Sequence[ComparedRun]) -> Losses:
    """A loss that is not finite is in no comparison."""
    curves = {
        each.label: {step.step: step.loss for step in each.figures.steps if step.loss is not None}
        for each in runs
        if each.trains_together
    }
    shared = set.intersection(*(set(curve) for curve in curves.values())) if curves else set()
    if not shared or len(curves) < 2:
        return Losses(0, {}, None)
    last = max(shared)
    apart = max(_apart([curve[step] for curve in curves.values()]) for step in shared)
    return Losses(last + 1, {label: curve[last] for label, curve in curves.items()}, apart)


def _apart(losses: Sequence[float]) -> float:
    size = max(map(abs, losses))
    return (max(losses) - min(losses)) / size if size else 0.0


def _loss_fault(losses: Losses) -> list[str]:
    if losses.apart is None or losses.apart <= LOSS_TOLERANCE:
        return []
    values = ", ".join(f"{label} {loss:.4f}" for label, loss in losses.last.items())
    return [
        f"losses differ by up to {losses.apart:.2%}, more than the order of additions explains "
        f"({LOSS_TOLERANCE:.1%}): after step {losses.step} {values}"
    ]


def _bit_faults(runs: Sequence[ComparedRun]) -> list[str]:
    """Runs that add the same numbers in the same order, as often, and yet end with other bits."""
    first: dict[tuple[Any, ...], ComparedRun] = {}
    faults = []
    for each in runs:
        told = each.summary["params_sha256"] and each.run["plan_sha256"]
        if not each.trains_together or not told:
            continue
        other = first.setdefault(_what_fixes_bits(each), each)
        if other.summary["params_sha256"] != each.summary["params_sha256"]:
            faults.append(
                f"{other.label} and {each.label} follow the same plan and end with different "
                "parameters: the same additions in the same order must give the same bits"
            )
    return faults


def _what_fixes_bits(it: ComparedRun) -> tuple[Any, ...]:
    job, turns = it.run["job"], it.run.get("turns") or {}
    return (
        it.run["plan_sha256"],
        num_reductions(job),
        repr({key: job[key] for key in ("model", "data")}),
        repr(
            {**job["train"], "warmup_steps": job["train"]["warmup_steps"] + turns.get("rounds", 0)}
        ),
        it.run["threads"]["per_rank"],
        it.run["host"]["cpu"],
        it.run["versions"]["torch"],
        (it.ranks[0].header or {}).get("data", {}).get("sha256"),
        it.model_file_sha256,
    )


def _forecast(runs: Sequence[ComparedRun], no_network: Spread) -> Forecast | None:
    """Of the runs that can be priced. None where one that has a plan cannot: a link is not limited,
    was never measured, or is not the same for all runs.
    """
    planned = [each for each in runs if each.trains_together and each.run["plan_sha256"]]
    priced = {each.label: each.priced for each in planned if each.priced}
    limits = {each.limits for each in priced.values()}
    if len(priced) < len(planned) or len(limits) != 1 or planned[0].run["nnodes"] == 1:
        return None
    rate = faster_rate(limits.pop())
    if rate is None:
        return None
    exposed = {label: each.exposed_s_at(rate) for label, each in priced.items()}
    steps = {
        label: no_network.mean + wait_s for label, wait_s in exposed.items() if wait_s is not None
    }
    return Forecast(rate, steps) if len(steps) == len(planned) else None
