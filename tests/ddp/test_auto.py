"""`auto` between real processes: one plan on all ranks, and the bytes of the reference for it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ddp.auto
from ddp.auto import AutoCollective, choose, links_of
from ddp.choice import Chooser, Timing
from ddp.errors import PlanError
from ddp.executor import Collective
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.hooks import HookState
from ddp.membership import Membership
from ddp.plan import BucketLayout, ReductionPlan
from ddp.probe import ProbedLink, ProbeTable
from ddp.probe_rounds import Mode
from ddp.reference import Reference
from ddp.timing import Traffic
from tests.ddp.oracle import Job, check_against_reference, noise
from tests.ddp.samples import TIMEOUT_S, Branches, message, the_one_text, train, wrap

FABRIC = Fabric((0, 1, 0))
MB = 1_000_000


def links(between: float, inside: float) -> NodeLinks:
    return NodeLinks(Link(0.0, between), Link(0.0, between), Link(0.0, inside))


def build() -> nn.Module:
    torch.manual_seed(2)
    first, last = nn.Linear(5, 64), nn.Linear(64, 3)
    return nn.Sequential(first, nn.Linear(64, 64), nn.Tanh(), last)


def loss(module: nn.Module, step: int, rank: int, micro: int) -> Tensor:
    result: Tensor = module(noise(step, rank, micro, shape=(4, 5))).square().sum()
    return result


def timings(*rows: tuple[str, int, float]) -> tuple[Timing, ...]:
    return tuple(Timing(name, num_bytes, (seconds,) * 3) for name, num_bytes, seconds in rows)


BY_SIZE = timings(
    ("ring", 1024, 1.0),
    ("hierarchical", 1024, 2.0),
    ("ring", 16_384, 2.0),
    ("hierarchical", 16_384, 1.0),
)


def measured(found: tuple[Timing, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this had been measured."""
    monkeypatch.setattr(ddp.auto, "_timings", lambda *_: found)


def auto_job(**arguments: Any) -> Job:
    packed = {"algorithm": "auto", "fabric": FABRIC, "bucket_cap_mb": 1e-3, **arguments}
    return Job(build, loss, arguments={"per_parameter": False, **packed})


def test_what_is_chosen_by_size_equals_the_reference_of_the_plan(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(BY_SIZE, monkeypatch)
    trained = check_against_reference(ranks, 3, auto_job())
    plan = ReductionPlan.from_json(trained[0].plans[-1])
    assert plan.algorithm == "auto"
    assert {bucket.numel > 2048: bucket.algorithm for bucket in plan.buckets} == {
        False: "ring",
        True: "hierarchical",
    }


def test_what_is_really_measured_equals_the_reference_or_has_none(ranks: Any) -> None:
    """Which is chosen is this machine's affair; that it is one plan and right is not."""

    def body(rank: int) -> tuple[dict[str, object], list[float]]:
        layer = nn.Linear(3, 2, bias=False)
        wrapped = wrap(layer, algorithm="auto", fabric=FABRIC)
        wrapped(torch.full((1, 3), float(rank + 1))).sum().backward()
        assert layer.weight.grad is not None
        wrapped.close()
        return wrapped.plan.to_json(), layer.weight.grad.tolist()[0]

    (plan, mean), *others = ranks.run(3, body)
    assert others == [(plan, mean)] * 2
    assert mean == [2.0] * 3
    assert ReductionPlan.from_json(plan).algorithm == "auto"


def test_buckets_made_again_are_chosen_for_again(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(BY_SIZE, monkeypatch)

    class Crossed(nn.Module):
        """Used in another order than registered in."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.small, self.large, self.last = (
                nn.Linear(5, 4),
                nn.Linear(64, 64),
                nn.Linear(4, 64),
            )

        def forward(self, inputs: Tensor) -> Tensor:
            result: Tensor = self.large(self.last(self.small(inputs)))
            return result

    job = replace(auto_job(bucket_cap_mb=4e-3), build=Crossed)
    first, *_, last = check_against_reference(ranks, 3, job)[0].plans
    assert first != last
    for plan in (ReductionPlan.from_json(first), ReductionPlan.from_json(last)):
        for bucket in plan.buckets:
            assert bucket.algorithm == ("hierarchical" if bucket.numel * 4 > 4096 else "ring")


class Told:
    """An all-reduce that takes the time that it is told, by a clock of its own."""

    def __init__(self, name: str, rank: int, clock: list[float]) -> None:
        self.name = name
        self._slow = {"hierarchical": 1, "native": 2}.get(name) == rank
        self._clock = clock

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        del segments, bucket
        self._clock[0] += buffer.nbytes / 1024 * (0.002 if self._slow else 0.001)
        return Traffic(0, 0)


def test_the_slowest_rank_counts_and_rank_0s_links_do_on_every_rank(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank measures something else, and is told of other links; all choose alike."""

    def body(rank: int) -> Any:
        clock = [0.0]
        monkeypatch.setattr(ddp.auto, "make_collective", lambda name, *_: Told(name, rank, clock))
        monkeypatch.setattr(ddp.auto, "monotonic", lambda: clock[0])
        monkeypatch.setattr(ddp.auto, "MOST_S", 0.06)
        told = links(25 * MB, 50 * MB) if rank == 0 else links(rank * MB, 1.0)
        fabric = Fabric((0, 0, 1), (told, told))
        group = Membership(None, TIMEOUT_S).connect()
        chooser = ddp.auto.measure(group, fabric, 64 * MB, TIMEOUT_S)
        chosen = choose(group, fabric, (64 * MB, 1024), TIMEOUT_S)
        group.close()
        by_size = [(each.num_bytes, each.algorithm, each.seconds) for each in chooser.timings]
        rates = [
            [node.nic_out.bytes_per_s, node.nic_in.bytes_per_s] for node in chooser.fabric.links
        ]
        return by_size, rates, chooser.of(64 * MB), sorted(chosen)

    values = ranks.run(3, body)
    assert values[1:] == values[:1] * 2
    by_size, rates, large, sizes = values[0]
    assert {num_bytes for num_bytes, *_ in by_size} == {1024}, "4 KiB take too long"
    medians = {algorithm: seconds[0] for _, algorithm, seconds in by_size}
    assert medians == pytest.approx(
        {
            **dict.fromkeys(("ring", "hierarchical_leader", "parameter_server"), 0.001),
            **dict.fromkeys(("hierarchical", "native"), 0.002),
        }
    )
    assert rates == [[25 * MB, 25 * MB]] * 2
    assert large.segments > 1
    assert sizes == [1024, 64 * MB]


def test_links_that_nobody_told_are_probed(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a size must be priced, and only on more than one node."""
    probed: list[int] = []
    table = ProbeTable((ProbedLink(0, 1, Mode.BOTH_WAYS, 7e6, 1e-3),), 0.0)

    def probe(*_: Any) -> ProbeTable:
        probed.append(1)
        return table

    def body(rank: int) -> list[Any]:
        monkeypatch.setattr(ddp.auto, "probe_links", probe)
        monkeypatch.setattr(ddp.auto, "MOST_S", 0.0)  # nothing is timed
        group = Membership(None, TIMEOUT_S).connect()
        told, untold = Fabric((0, 1), (links(1.0, 1.0),) * 2), Fabric((0, 1))
        rank_0_told, rank_1_told = (told, untold)[rank], (untold, told)[rank]
        found = []
        for fabric in (Fabric((0, 0)), untold, told, rank_0_told, rank_1_told):
            probed.clear()
            chooser = ddp.auto.measure(group, fabric, MB, TIMEOUT_S)
            rates = [node.nic_out.bytes_per_s for node in chooser.fabric.links]
            found.append([len(probed), rates])
        group.close()
        return found

    inf = float("inf")
    as_probed, as_told = [1, [7e6, inf]], [0, [1.0, 1.0]]
    expected = [[0, [inf]], as_probed, as_told, as_told, as_probed]
    assert ranks.run(2, body) == [expected] * 2


def test_a_probe_tells_the_best_pair_of_each_node_both_ways_at_once() -> None:
    rows = (
        (0, 1, Mode.ONE_WAY, 90.0),
        (0, 1, Mode.BOTH_WAYS, 80.0),
        (0, 2, Mode.BOTH_WAYS, 10.0),
        (2, 0, Mode.ONE_WAY, 30.0),
        (1, 1, Mode.INTRA_NODE, 500.0),
    )
    table = ProbeTable(tuple(ProbedLink(*row, 0.0) for row in rows), 0.0)
    found = [
        [node.nic_out.bytes_per_s, node.nic_in.bytes_per_s, node.intra.bytes_per_s]
        for node in links_of(table, 3)
    ]
    inf = float("inf")
    assert found == [[80.0, 30.0, inf], [inf, 80.0, 500.0], [30.0, 10.0, inf]]


def test_it_reduces_by_size_and_makes_each_collective_once() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
            seen.append((self.name, buffer.nbytes, segments, bucket))
            return Traffic(1, 2)

    def make(name: str) -> Collective:
        made.append(name)
        return Named(name)

    seen: list[tuple[str, int, int, int]] = []
    made: list[str] = []
    auto = AutoCollective(Chooser(FABRIC, BY_SIZE), make)
    for bucket, numel in enumerate((1, 4096, 2)):
        assert auto.all_reduce(torch.zeros(numel), 3, bucket) == Traffic(1, 2)
    assert made == ["ring", "hierarchical"]
    assert seen == [("ring", 4, 3, 0), ("hierarchical", 16_384, 3, 1), ("ring", 8, 3, 2)]


def test_a_rank_alone_measures_nothing(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp.auto, "_timings", None)
    check_against_reference(ranks, 1, auto_job(fabric=Fabric((0,))))


def test_a_plan_with_a_bucket_through_native_has_nothing_to_replay() -> None:
    buckets = tuple(
        BucketLayout("float32", (name,), (3,), 1, algorithm=algorithm)
        for name, algorithm in (("a", "ring"), ("b", "native"))
    )
    with pytest.raises(PlanError, match="native has no schedule"):
        Reference(build(), ReductionPlan("auto", "contiguous", 0, (0, 1), buckets))


@pytest.mark.parametrize("more", [{"segments": 2}, {"ring_order": "interleaved"}, {"ring_seed": 1}])
def test_what_it_chooses_itself_cannot_be_given(ranks: Any, more: dict[str, Any]) -> None:
    def body(_rank: int) -> str:
        return message(lambda: wrap(Branches(), algorithm="auto", **more))

    text = the_one_text(ranks.run(2, body))
    assert text.startswith("UsageError: rank 0: algorithm='auto' with ring_order=")


def test_a_hook_of_torchs_class_has_no_buckets_to_choose_for(ranks: Any) -> None:
    text = the_one_text(ranks.run(2, lambda _rank: message(lambda: HookState("auto"))))
    assert text.startswith("UsageError: rank 0: algorithm='auto' chooses for the buckets of ddp.")


def test_ranks_that_choose_differently_stop(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Different versions of this package, say."""

    def body(rank: int) -> str:
        one_way = timings(("ring", 1024, 1.0 + rank), ("hierarchical", 1024, 1.5))
        measured(one_way, monkeypatch)
        return message(lambda: train(wrap(Branches(), algorithm="auto")))

    assert "rank 1 made another reduction plan than rank 0" in the_one_text(ranks.run(2, body))
