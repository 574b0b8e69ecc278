"""docs/lesson: it runs alone, shows what it promises, agrees with `ddp`, and can fail."""

import importlib.util
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import DistributedSampler

from ddp import ReductionPlan
from ddp.plan import BucketLayout
from jobs.proof.claims import one_thread
from jobs.proof.lesson import train_here

LESSON = Path(__file__).parents[2] / "docs" / "lesson"
ROW = re.compile(r" *(\d+) +([\d.]+) +([\d.]+) +([\d.e+-]+) +(\w{12}) +((?:\w{12} )+) *(yes|NO)")
TOLERANCE = 1e-6
"""Between losses of another order of sums, over 16 steps."""


@pytest.fixture
def lesson(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The file as a module, whose ranks are forked, so that they see what a test replaced."""
    spec = importlib.util.spec_from_file_location("lesson_main", LESSON / "main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lesson_main", module)
    spec.loader.exec_module(module)

    def fork(worker: Callable[..., None], arguments: tuple[Any, ...], num_ranks: int) -> None:
        start_processes(worker, arguments, num_ranks, start_method="fork")

    monkeypatch.setattr(module.mp, "spawn", fork)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside torch's threads
        yield module
    torch.set_num_threads(threads)


def rows_of(screen: str) -> list[tuple[str, ...]]:
    return [match.groups() for match in map(ROW.fullmatch, screen.splitlines()) if match]


def test_it_runs_alone_and_every_step_is_equal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(LESSON / "main.py")],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    rows = rows_of(done.stdout)
    assert (done.returncode, len(rows)) == (0, 16), done.stdout + done.stderr
    assert [row[0] for row in rows] == [str(number) for number in range(1, 17)]
    assert {row[6] for row in rows} == {"yes"}
    assert len({row[4] for row in rows}) == 16  # it trains
    assert float(rows[-1][1]) < 0.5 * float(rows[0][1])
    assert done.stdout.splitlines()[-1] == "16 of 16 steps: 4 ranks hold the bytes of one process"
    agrees_with_ddp(rows)


def agrees_with_ddp(rows: list[tuple[str, ...]]) -> None:
    """The same plan: the same losses and checksums. Another one: losses within a tolerance."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model.append(nn.Linear(32, 1))
    named = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    names, numels = zip(*named, strict=True)

    def plan(algorithm: str, status_numel: int) -> ReductionPlan:
        bucket = BucketLayout("float32", names, numels, 1, status_numel)
        return ReductionPlan(algorithm, "contiguous", 0, (0, 0, 1, 1), (bucket,))

    with one_thread():
        same, _ = train_here([plan("ring", 0)] * 16, 4)
        other, _ = train_here([plan("hierarchical", 4)] * 16, 4)
    assert [(f"{loss:.6f}", each) for loss, each in same] == [(row[1], row[4]) for row in rows]
    assert {row[5].strip() for row in rows} == {each for _, each in same}
    assert [each for _, each in other] != [each for _, each in same]
    for row, (loss, _) in zip(rows, other, strict=True):
        assert abs(float(row[2]) - loss) <= TOLERANCE


def test_it_is_short_and_needs_torch_alone() -> None:
    text = (LESSON / "main.py").read_text()
    assert len(text.splitlines()) <= 200
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported - sys.stdlib_module_names == {"torch"}
    for promised in (
        "class MiniMLP(",
        "def __init__(self, model: nn.Module, world_size: int)",
        "def sync_grads(self)",
        "def worker(rank: int, world_size: int, ",
        "def _reference_single_process_loop(",
        "mp.spawn(worker, ",
    ):
        assert promised in text


def test_forked_ranks_are_equal_too(lesson: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """So that what the next test sees comes from what it broke."""
    assert lesson.main() == 0
    assert len(rows_of(capsys.readouterr().out)) == 16


def without_dividing(lesson: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson, "ring_all_reduce", lambda bucket: bucket.mul_(4))


def without_broadcast(_: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "broadcast", lambda _tensor, src: None)  # noqa: ARG005


def backwards(lesson: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right sum, in another order."""
    monkeypatch.setattr(lesson, "ring_all_reduce", dist.all_reduce)


@pytest.mark.parametrize("break_it", [without_dividing, without_broadcast, backwards])
def test_what_is_broken_is_not_equal(
    lesson: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[ModuleType, pytest.MonkeyPatch], None],
) -> None:
    break_it(lesson, monkeypatch)
    assert lesson.main() == 1
    assert "NO" in capsys.readouterr().out


def test_an_unused_parameter_is_named(lesson: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "broadcast", lambda _tensor, src: None)  # noqa: ARG005
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "spare": nn.Linear(2, 1)})
    wrapped = lesson.DistributedDataParallel(model, 1)
    model["used"](torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match=r"no gradient reached spare\.weight, spare\.bias"):
        wrapped.sync_grads()


def test_shuffling_with_seed_plus_rank_loses_samples() -> None:
    """The numbers of the README's first trap."""
    shared = shares(lambda _rank: 7)
    assert sorted(index for share in shared for index in share) == list(range(4096))
    own = shares(lambda rank: 7 + rank)
    unseen = 4096 - len({index for share in own for index in share})
    assert 0.29 < unseen / 4096 < 0.35
    assert "about 32 %" in (LESSON / "README.md").read_text()


def shares(seed_of: Callable[[int], int]) -> list[list[int]]:
    samples: Any = range(4096)
    return [list(DistributedSampler(samples, 4, r, seed=seed_of(r))) for r in range(4)]
