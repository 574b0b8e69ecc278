"""FLOORS: what all-reduces must reach on which lab, and whether they did.

A floor is data: the lab, the figure, the worst that passes and what is wanted. Owns the judgement
and which rows it needs; docs/benchmarks.md holds what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.spec import ClusterSpec
from cluster.units import format_rate, parse_rate
from ddp.algorithms import ALGORITHMS
from jobs.bench.asked import BASE, PLACEMENTS, BenchSpec, Contender
from jobs.bench.measures import (
    KIB,
    MB,
    SMALL,
    AutoAgainstBest,
    AutoBehind,
    AutoSlower,
    BoundRatio,
    Kind,
    LimitRatio,
    Measure,
    Mixed,
    OverNative,
    PredictionError,
    Shuffled,
)
from jobs.bench.rows import Row
from jobs.errors import BenchError

S = 32 * MB
MIN_ROUNDS = 10


@dataclass(frozen=True)
class Floor:
    """`rate`: of the links between nodes, as people write it; None: there are none.

    `at_most`: floor and target are the most there may be, else the least.
    """

    shape: str
    rate: str | None
    measure: Measure
    floor: float
    target: float
    at_most: bool = False


def _hierarchical(shape: str, rate: str, floor: float, target: float) -> Floor:
    return Floor(shape, rate, LimitRatio("hierarchical", S), floor, target)


SPEED = (
    _hierarchical("2x2", "200mbit", 0.95, 0.98),
    _hierarchical("4x2", "200mbit", 0.95, 0.98),
    _hierarchical("2x4", "400mbit", 0.95, 0.98),
    _hierarchical("2x4", "1gbit", 0.93, 0.97),
    Floor("2x2", "200mbit", OverNative("hierarchical", S), 1.45, 1.50),
    Floor("2x4", "200mbit", OverNative("hierarchical", S), 1.68, 1.75),
    Floor("4x2", "200mbit", OverNative("hierarchical", S), 1.14, 1.17),
    Floor("2x2", "400mbit", Mixed(S), 2.8, 2.97),
    Floor("2x2", "400mbit", Shuffled(S), 0.03, 0.01, at_most=True),
    Floor("1x2", None, OverNative("auto", 16 * MB), 7, 12),
    Floor("1x4", None, OverNative("auto", 16 * MB), 5, 8),
    Floor("1x2", None, OverNative("auto", 64 * KIB), 10, 18),
    Floor("1x4", None, OverNative("auto", 64 * KIB), 10, 18),
    *(Floor("2x2", "1gbit", OverNative("auto", size), 3, 8) for size in SMALL),
    Floor("2x2", "1gbit", AutoAgainstBest(), 0.05, 0.02, at_most=True),
    Floor("2x2", "1gbit", AutoBehind(), 0.2, 0.2, at_most=True),
    Floor("2x2", "1gbit", AutoSlower(), 0, 0, at_most=True),
)
_BETWEEN = tuple(dict.fromkeys((each.shape, each.rate) for each in SPEED if each.rate))
_OFF: tuple[tuple[Kind, float, float], ...] = (
    ("median", 0.03, 0.01),
    ("worst", 0.08, 0.03),
    ("small", 0.15, 0.08),
)
FLOORS: tuple[Floor, ...] = (
    *SPEED,
    *(Floor(*lab, OverNative("ring", S), 0.97, 1.01) for lab in _BETWEEN),
    *(Floor(*lab, BoundRatio("hierarchical", S), 1.01, 1.0, at_most=True) for lab in _BETWEEN),
    *(
        Floor(*lab, PredictionError(kind), floor, target, at_most=True)
        for lab in _BETWEEN
        for kind, floor, target in _OFF
    ),
)


@dataclass(frozen=True)
class Figure:
    """One floor held against what was measured, as text and as numbers."""

    name: str
    measured: float
    floor: float
    target: float
    at_most: bool
    unit: str

    @property
    def passes(self) -> bool:
        return self._within(self.floor)

    @property
    def reaches(self) -> bool:
        """The target too."""
        return self._within(self.target)

    def _within(self, limit: float) -> bool:
        return self.measured <= limit if self.at_most else self.measured >= limit


@dataclass(frozen=True)
class Elsewhere:
    """Figures that only another lab shows, and the command that brings it up and checks them."""

    shape: str
    rate: str | None
    figures: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class Checked:
    figures: tuple[Figure, ...]
    elsewhere: tuple[Elsewhere, ...]

    @property
    def ok(self) -> bool:
        return all(each.passes for each in self.figures)


def floors_of(spec: ClusterSpec) -> tuple[Floor, ...]:
    """Those that this lab can check. Raises BenchError where there is none."""
    found = tuple(each for each in FLOORS if _fits(each, spec))
    if not found:
        commands = [each.command for each in _elsewhere(FLOORS)]
        raise BenchError(
            f"CHECK=1 on {spec.nodes} x {spec.ranks_per_node} at {_rates(spec)}: no floor is of "
            "such a lab",
            rule="figures are held against floors of the same nodes, ranks and rate",
            fix=commands,
        )
    return found


def check_spec(spec: ClusterSpec, rounds: int, warmup_rounds: int) -> BenchSpec:
    """What must be timed to check all floors of this lab. Raises BenchError."""
    if rounds < MIN_ROUNDS:
        raise BenchError(
            f"CHECK=1 with ITERS={rounds}",
            rule=f"floors are of at least {MIN_ROUNDS} interleaved rounds",
            fix="leave ITERS out",
        )
    floors = floors_of(spec)
    sizes = {size for each in floors for size in each.measure.sizes_bytes}
    found = {who for each in floors for who in each.measure.contenders}
    order = [BASE, *ALGORITHMS]

    def place(who: Contender) -> tuple[int, int]:
        return PLACEMENTS.index(who.placement), order.index(who.algorithm)

    return BenchSpec(
        sizes_bytes=tuple(sorted(sizes)),
        contenders=tuple(sorted(found, key=place)),
        rounds=rounds,
        warmup_rounds=warmup_rounds,
    )


def check(spec: ClusterSpec, rows: Sequence[Row]) -> Checked:
    """Every floor of this lab against the rows, and what other labs would have to show."""
    here = floors_of(spec)
    figures = tuple(
        Figure(
            each.measure.words,
            each.measure.of(rows),
            each.floor,
            each.target,
            each.at_most,
            each.measure.unit,
        )
        for each in here
    )
    return Checked(figures, _elsewhere(_others(spec, here)))


def _others(spec: ClusterSpec, here: Sequence[Floor]) -> list[Floor]:
    """What is left to check: SPEED on other labs; of what every lab can show, what none has."""
    told = {each.measure.words for each in here}
    general = {
        each.measure.words: each
        for each in reversed(FLOORS)
        if each not in SPEED and each.measure.words not in told
    }
    return [each for each in SPEED if not _fits(each, spec)] + list(general.values())


def _elsewhere(floors: Sequence[Floor]) -> tuple[Elsewhere, ...]:
    labs: dict[tuple[str, str | None], list[str]] = {}
    for each in floors:
        labs.setdefault((each.shape, each.rate), []).append(each.measure.words)
    return tuple(
        Elsewhere(shape, rate, tuple(figures), _command(shape, rate))
        for (shape, rate), figures in labs.items()
    )


def _command(shape: str, rate: str | None) -> str:
    lab = f"{shape}-{rate}" if rate else shape
    limit = f" RATE={rate}" if rate else ""
    return f"make cluster-up CLUSTER={shape}{limit} LAB={lab} && make bench CHECK=1 LAB={lab}"


def _fits(floor: Floor, spec: ClusterSpec) -> bool:
    if floor.shape != f"{spec.nodes}x{spec.ranks_per_node}":
        return False
    links = [spec.links_of(name) for name in spec.node_names]
    if any(each.intra_node.rate_bits_per_s is not None for each in links):
        return False
    rates = {each.inter_node.rate_bits_per_s for each in links}
    return floor.rate is None or rates == {parse_rate(floor.rate)}


def _rates(spec: ClusterSpec) -> str:
    links = [spec.links_of(name) for name in spec.node_names]
    rates = {format_rate(each.inter_node.rate_bits_per_s) for each in links}
    inside = {format_rate(each.intra_node.rate_bits_per_s) for each in links}
    return f"{', '.join(sorted(rates))} (inside a node {', '.join(sorted(inside))})"
