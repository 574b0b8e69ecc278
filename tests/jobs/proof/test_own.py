"""`proof algorithms` with an algorithm and a hook of one's own: beside ours, or what is wrong."""

import re
from pathlib import Path

import pytest

import jobs.proof.grid
import jobs.proof.hooks
from ddp import ALGORITHMS
from jobs.proof.algorithms import prove_algorithms
from jobs.proof.hooks import prove_hook
from jobs.proof.lines import Line
from jobs.proof.variants import variants
from tests.jobs.command import call, valid

pytestmark = pytest.mark.usefixtures("forked")
FILE = """
import torch
import torch.distributed as dist
from ddp import Schedule, Transfer, UsageError

def star(fabric):
    n = fabric.num_ranks
    def stages():
        for rank in range(1, n):
            yield (Transfer(rank, 0, 0, True),)
        if n > 1:
            yield tuple(Transfer(0, rank, 0, False) for rank in range(1, n){but})
    return Schedule(n, 1, "star", stages)

def picky(fabric):
    if len(fabric.groups) == 1:
        raise UsageError("several nodes only")
    return star(fabric)

def failing(fabric):
    return star(fabric) if fabric.num_ranks != 3 else {{}}["three"]

def unordered(fabric, ring_order, ring_seed):
    return star(fabric)

def done(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future

def nothing(state, bucket):
    return done(bucket.buffer())

def total(state, bucket):
    dist.all_reduce(bucket.buffer())
    return done(bucket.buffer())

def mean(state, bucket):
    dist.all_reduce(bucket.buffer())
    return done(bucket.buffer().div_(dist.get_world_size()))

def nearly(state, bucket):
    dist.all_reduce(bucket.buffer())
    bucket.buffer().div_(dist.get_world_size()).add_(1e-6 * dist.get_rank())
    return done(bucket.buffer())

def failing_hook(state, bucket):
    return {{}}["hook"]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the file above, with a small grid and two of our algorithms beside it; a colon and a
    function come behind it."""
    monkeypatch.setattr(jobs.proof.grid, "MAX_RANKS", 4)
    for known in set(ALGORITHMS) - {"native", "hierarchical"}:
        monkeypatch.delitem(ALGORITHMS, known)
    (tmp_path / "mine.py").write_text(FILE.format(but=""))
    return f"{tmp_path}/mine.py"


def proven(own: str) -> dict[str, Line]:
    return {variant.name: line for variant, _, line in prove_algorithms(own)}


def test_each_ring_order_that_it_takes_is_proven(place: str) -> None:
    found = proven(f"{place}:unordered")
    assert list(found)[:-3] == [variant.name for variant in variants()]
    names = [f"mine:unordered, {order}" for order in ("contiguous", "interleaved", "shuffled")]
    assert list(found)[-3:] == names
    assert all(found[name].proven for name in names)


def test_clusters_that_it_refuses_are_left_out_and_failures_are_not(place: str) -> None:
    line = proven(f"{place}:picky")["mine:picky"]
    assert line.first_difference is None
    assert line.says.endswith(", 24 between 4 processes")  # one placement of five is refused
    told = str(proven(f"{place}:failing")["mine:failing"].first_difference)
    assert re.match(r"ranks on nodes 0 0 0, .*algorithm: \S+/mine\.py:21: KeyError: 'three'", told)


def test_a_wrong_one_is_told_with_its_first_difference(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(place).write_text(FILE.format(but=" if rank != 2"))
    code, out, _ = call(capsys, "proof", "algorithms", "--algorithm", f"{place}:star", "--json")
    document = valid(out, "proof")
    *ours, mine = document["lines"]
    assert (code, document["ok"], all(line["proven"] for line in ours)) == (1, False, True)
    assert [line["name"] for line in ours] == [variant.name for variant in variants()]
    assert mine["name"] == "mine:star"
    assert mine["first_difference"].startswith(
        "ranks on nodes 0 0 0, 7 elements, 1 segment, complex64, in memory: mine:star: rank 2 "
        "ends with chunk 0 holding rank 0 0 times"
    )


def test_hooks_are_held_to_the_mean(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.proof.hooks, "RANK_COUNTS", (2, 3))
    assert prove_hook(f"{place}:mean") == Line("hook mine:mean", jobs.proof.hooks.SAYS)
    wrong = {
        "nothing": r"2 ranks: rank 0, step 1: element 0 of parameter 0 is \S+, where the mean is ",
        "total": r"2 ranks: rank 0, step 1: element 0 of parameter 0 is ",
        "nearly": r"2 ranks: step 1: rank 1 holds other gradients than rank 0",
        "failing_hook": r"2 ranks: rank \d: .*hook: \S+/mine\.py:48: KeyError: 'hook'",
    }
    for name, told in wrong.items():
        assert re.match(told, str(prove_hook(f"{place}:{name}").first_difference)), name


def test_torchs_hooks_are_proven_beside_the_algorithms(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place
    monkeypatch.setattr(jobs.proof.hooks, "RANK_COUNTS", (2, 3))
    hooks = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
    for name in ("fp16_compress_hook", "bf16_compress_hook"):
        assert prove_hook(f"{hooks}:{name}").proven
    code, out, _ = call(
        capsys, "proof", "algorithms", "--hook", f"{hooks}:allreduce_hook", "--json"
    )
    last = valid(out, "proof")["lines"][-1]
    assert (code, last["name"], last["proven"]) == (0, "hook default_hooks:allreduce_hook", True)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--hook", "a:b"], 2, "--hook belongs to proof algorithms"),
        (["--algorithm", "a:b"], 2, "ddplab proof algorithms --algorithm"),
        (["algorithms", "--algorithm", "ring"], 2, "ours are all proven anyway"),
        (["algorithms", "--algorithm", "gone.py:go"], 1, "gone.py: No such file"),
        (["algorithms", "--hook", "gone.py:go"], 1, "gone.py: No such file"),
        (["algorithms", "--hook", "gone"], 1, "a colon, and the name of a function"),
    ],
)
def test_what_cannot_be_proven_is_refused(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, out, err = call(capsys, "proof", *arguments)
    assert (ended, out) == (code, "")
    assert told in " ".join(err.split())
