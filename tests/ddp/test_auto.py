"""`auto` between real processes: one plan on all ranks, and the bytes of the reference for it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ddp.auto
from ddp.auto import AutoCollective
from ddp.choice import Chooser, Timing
from ddp.errors import PlanError
from ddp.executor import Collective
from ddp.fabric import Fabric
from ddp.hooks import HookState
from ddp.plan import BucketLayout, ReductionPlan
from ddp.reference import Reference
from ddp.timing import Traffic
from tests.ddp.oracle import Job, check_against_reference, noise
from tests.ddp.samples import Branches, message, the_one_text, train, wrap

FABRIC = Fabric((0, 1, 0))


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
