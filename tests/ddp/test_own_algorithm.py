"""An algorithm of one's own by import path: wherever a name is taken, never silently wrong."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddp import Fabric, HookState, ReductionPlan, Reference, reduce_hook
from ddp.algorithms import find_algorithm
from ddp.errors import OwnCodeError, ScheduleError, UsageError
from ddp.plan import BucketLayout
from ddp.reference import reduce_gradients
from ddp.replay import prove
from tests.ddp.samples import as_lists, gradients, integers, linear, message, the_one_text, wrap

OWN = str(Path(__file__).parents[2] / "docs" / "own_algorithm.py") + ":build"
FILE = """
import os
import random
from ddp import Algorithm, Fabric, Schedule, Transfer, UsageError

def chain(order):
    n = len(order)
    def stages():
        for at in range(n - 1):
            yield (Transfer(order[at], order[at + 1], 0, True),)
        for at in reversed(range(n - 1)):
            yield (Transfer(order[at + 1], order[at], 0, False),)
    return Schedule(n, 1, "noop", stages)

def good(fabric):
    return chain(range(fabric.num_ranks))

def ordered(fabric, ring_order, ring_seed):
    ranks = range(fabric.num_ranks)
    return chain(ranks if ring_order == "contiguous" else ranks[::-1])

mine = Algorithm("x", "Says so.", "exact_integers", ordered, max_segments=7)
proofless = Algorithm("x", "Says so.", "none", ordered, max_segments=7)
byteful = Algorithm("x", "Says so.", "bytes", ordered, max_segments=7)
buildless = Algorithm("x", "Says so.", "exact_integers", None, max_segments=7)

def lossy(fabric):
    whole = good(fabric)
    return Schedule(whole.num_ranks, 1, "x", lambda: list(whole)[:-1])

def refusing(fabric):
    raise UsageError("only on Sundays")

def failing(fabric):
    return {}["key"]

def failing_on_one(fabric):
    return 1 // (1 - int(os.environ["OWN_RANK"])) and good(fabric)

def of_another_size(fabric):
    return chain(range(fabric.num_ranks + 1))

def wrong(fabric):
    return 3

def late(fabric):
    def stages():
        yield (Transfer(0, 1, 0, True),)
        raise KeyError("later")
    return Schedule(fabric.num_ranks, 1, "x", stages)

def endless(fabric):
    def stages():
        while True:
            yield (Transfer(0, 1, 0, True),)
    return Schedule(fabric.num_ranks, 1, "x", stages)

def untyped(fabric):
    return Schedule(fabric.num_ranks, 1, "x", lambda: [((0, 1, 0, True),)])

def worded(fabric):
    return Schedule(fabric.num_ranks, 1, "x", lambda: [(Transfer("0", 1, 0, True),)])

def selfish(fabric):
    return Schedule(fabric.num_ranks, 1, "x", lambda: [(Transfer(1, 1, 0, True),)])

def drawn_by_lot(fabric):
    return chain(random.SystemRandom().sample(range(fabric.num_ranks), fabric.num_ranks))

def by_rank(fabric):
    ranks = range(fabric.num_ranks)
    return chain(ranks if os.environ["OWN_RANK"] == "0" else ranks[::-1])
"""
TWO = Fabric((0, 1))


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Of the file above; a colon and a function come behind it."""
    (tmp_path / "mine.py").write_text(FILE)
    return f"{tmp_path}/mine.py"


def build(text: str, fabric: Fabric = TWO, order: str = "contiguous", seed: int = 0) -> Any:
    make = find_algorithm(text).build
    assert make is not None
    return make(fabric, order, seed)


def test_a_function_of_the_fabric(place: str) -> None:
    found = find_algorithm(f"{place}:good")
    assert re.fullmatch(rf"{place}:good@[0-9a-f]{{12}}", found.name)
    assert (found.proof, found.max_segments) == ("exact_integers", 4)
    schedule = build(found.name, Fabric((0, 1, 1)))
    prove(schedule)
    # named "noop" it would be taken for one that sends nothing
    assert (schedule.name, len(list(schedule))) == ("mine:good", 4)


def test_the_ring_is_given_where_it_is_asked_for_and_refused_elsewhere(place: str) -> None:
    first = [
        next(iter(build(f"{place}:ordered", order=order)))[0].src for order in ("contiguous", "x")
    ]
    assert first == [0, 1]
    with pytest.raises(UsageError, match="mine:good with ring order 'x' and seed 0: it has no arg"):
        build(f"{place}:good", order="x")
    with pytest.raises(
        UsageError, match="and seed 3: it has no arguments ring_order and ring_seed"
    ):
        build(f"{place}:good", seed=3)


def test_an_algorithm_says_more_of_itself(place: str) -> None:
    found = find_algorithm(f"{place}:mine")
    assert (found.summary, found.max_segments) == ("Says so.", 7)
    assert found.name.startswith(f"{place}:mine@")
    prove(build(f"{place}:mine", Fabric((0, 1, 1))))
    for name in ("proofless", "byteful", "buildless"):
        with pytest.raises(OwnCodeError, match=r'write Algorithm.*proof="exact_integers", build='):
            find_algorithm(f"{place}:{name}")


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("refusing", UsageError, "^only on Sundays$"),
        ("failing", ScheduleError, r"algorithm: \S+/mine\.py:35: KeyError: 'key'$"),
        ("of_another_size", ScheduleError, "a schedule of 3 ranks for a fabric of 2"),
        ("wrong", ScheduleError, "wrong returned int: it returns a ddp.Schedule"),
        ("late", ScheduleError, r"algorithm: \S+/mine\.py:49: KeyError: 'later'$"),
        ("endless", ScheduleError, "mine:endless: more than 100,000 stages; does it end"),
        (
            "untyped",
            ScheduleError,
            r"mine:untyped: stage 0 holds \(0, 1, 0, True\), where Transfer",
        ),
        ("worded", ScheduleError, r"mine:worded: stage 0 holds Transfer\(src='0'.*whole numbers"),
        ("selfish", ScheduleError, "mine:selfish: stage 0.*a rank does not send to itself"),
        ("lossy", ScheduleError, "mine:lossy: rank 0 ends with chunk 0 holding rank 1 0 times"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    place: str, name: str, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told) as caught:
        prove(build(f"{place}:{name}"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("overlap", [True, False])
def test_three_ranks_hold_the_bytes_of_one_process(ranks: Any, overlap: bool) -> None:
    """Wrapper, plan, reference and hook take the same text."""

    def body(rank: int) -> tuple[Any, ...]:
        layer = linear(rank, 7, 5)
        wrapped = wrap(layer, algorithm=OWN, fabric=Fabric((0, 0, 1)), overlap=overlap, segments=2)
        wrapped(torch.randn(3, 7, generator=torch.Generator().manual_seed(rank))).sum().backward()
        found = as_lists(gradients(layer))
        wrapped.close()
        return wrapped.plan.to_json(), found

    values = ranks.run(3, body)
    plan = ReductionPlan.from_json(values[0][0])
    assert re.fullmatch(r"/.*/docs/own_algorithm\.py:build@[0-9a-f]{12}", plan.algorithm)
    layer = linear(0, 7, 5)

    def run_rank(rank: int) -> None:
        inputs = torch.randn(3, 7, generator=torch.Generator().manual_seed(rank))
        layer(inputs).sum().backward()

    Reference(layer, plan).backward(run_rank)
    wanted = as_lists(gradients(layer))
    assert values == [(values[0][0], wanted)] * 3


def test_under_torchs_own_class(ranks: Any) -> None:
    def body(rank: int) -> Any:
        model = TorchDDP(linear(rank))
        state = HookState(OWN, timeout_s=5)
        model.register_comm_hook(state, reduce_hook)
        model(integers(rank, 4, 3)).sum().backward()
        state.close()
        return state.plan(model.module).algorithm, model.module.weight.grad[0].tolist()

    import torch._dynamo

    mean = torch.stack([integers(rank, 4, 3).sum(0) for rank in range(2)]).mean(0).tolist()
    for algorithm, gradient in ranks.run(2, body):
        assert algorithm.startswith(OWN + "@")
        assert gradient == mean


def test_every_fault_is_one_text_on_all_ranks(ranks: Any, place: str) -> None:
    names = ("failing", "failing_on_one", "lossy", "late", "refusing", "by_rank", "drawn_by_lot")
    other = place.replace("mine.py", "other.py")
    Path(other).write_text(FILE)

    def body(rank: int) -> list[str]:
        os.environ["OWN_RANK"] = str(rank)
        texts = [
            message(lambda name=name: wrap(linear(rank), algorithm=f"{place}:{name}"))
            for name in names
        ]
        texts.append(message(lambda: wrap(linear(rank), algorithm=f"{place}:gone")))
        texts.append(
            message(lambda: wrap(linear(rank), algorithm=f"{(place, other)[rank > 0]}:good"))
        )
        texts += [
            message(lambda name=name: HookState(f"{place}:{name}")) for name in ("late", "gone")
        ]
        return texts

    texts = [the_one_text(each) for each in zip(*ranks.run(3, body), strict=True)]
    told = dict(zip([*names, "gone", "other file", "hook late", "hook gone"], texts, strict=True))
    assert re.search(r"rank 0: algorithm: \S+mine\.py:35: KeyError", told["failing"])
    assert re.search(r"rank 1: algorithm: \S+:38: ZeroDivisionError", told["failing_on_one"])
    assert "rank 0: mine:lossy: rank 0 ends with chunk 0 holding" in told["lossy"]
    assert "rank 0: algorithm: " in told["late"] and "KeyError: 'later'" in told["hook late"]
    assert told["refusing"] == "UsageError: rank 0: only on Sundays"
    assert "rank 1 made another schedule than rank 0 of the same fabric" in told["by_rank"]
    assert "rank 0: algorithm: " in told["gone"] and "no gone in it" in told["hook gone"]
    assert "rank 1 asks for algorithm=" in told["other file"]


def test_a_plan_is_replayed_by_the_file_that_it_was_made_with(place: str) -> None:
    plan = ReductionPlan(
        f"{place}:good", "contiguous", 0, (0, 1), (BucketLayout("float32", ("a",), (2,), 1),)
    )
    pinned = ReductionPlan(
        find_algorithm(f"{place}:good").name,
        *[getattr(plan, name) for name in ("ring_order", "ring_seed", "node_of", "buckets")],
    )
    schedule = pinned.schedule()
    assert schedule is not None
    parts = [{"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([4.0, 8.0])}]
    mean = reduce_gradients(pinned.buckets, {pinned.algorithm: schedule}, parts)
    assert mean["a"].tolist() == [2.5, 5.0]
    Reference(nn.Linear(1, 1), plan)
    lost = ReductionPlan(pinned.algorithm[:-12] + "0" * 12, "contiguous", 0, (0, 1), ())
    with pytest.raises(OwnCodeError, match="is not what it was"):
        Reference(nn.Linear(1, 1), lost)
