"""Whole ranks over loopback with an algorithm or a hook of one's own."""

import hashlib
from pathlib import Path

import torch

from ddp import ReductionPlan
from ddp.cost import price
from ddp.fabric import Fabric, Link, NodeLinks
from tests.jobs.ranks import RunRanks, arguments, assert_finished, failures, final_sums, records

OWN = Path(__file__).parents[2] / "docs" / "own_algorithm.py"
FP16 = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks:fp16_compress_hook"
HOOKS = """
import os
import torch
import torch.distributed as dist
CALLS = []

def mean(state, bucket):
    CALLS.append(bucket.index())
    {fault}
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().div_(dist.get_world_size()))
"""


def test_an_algorithm_of_ones_own_trains_and_is_recorded(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """With the bytes that its schedule has, and the plan that its file and nothing else makes."""
    run_dir = tmp_path / "run"
    assert_finished(run_ranks(arguments(run_dir, "hier", f"ddp.algorithm={OWN}:build")))
    assert len(set(final_sums(run_dir))) == 1
    sha256 = hashlib.sha256(OWN.read_bytes()).hexdigest()
    ranks = records(run_dir)
    for each in ranks:
        assert each.header is not None
        wanted = {"path": str(OWN), "function": "build", "sha256": sha256}
        assert each.header["algorithm_file"] == wanted
        assert each.header["hook_file"] is None
    plan = ReductionPlan.from_json(ranks[0].header["plan"])
    assert plan.algorithm == f"{OWN}:build@{sha256[:12]}"
    sent = [each.steps[0].inter_node_bytes for each in ranks]
    assert sent == [_sent_by(plan, node) for node in (0, 1)]
    assert (run_dir / "prediction.json").read_text().count('"step_seconds": null') == 0


def _sent_by(plan: ReductionPlan, node: int) -> int:
    schedule = plan.schedule()
    assert schedule is not None
    link = Link(0.0, 1.0)
    fabric = Fabric(plan.node_of, (NodeLinks(link, link, link),) * 2)
    return sum(
        price(
            schedule,
            fabric,
            bucket.numel * getattr(torch, bucket.dtype).itemsize,
            bucket.segments,
        )
        .traffic[node]
        .out_bytes
        for bucket in plan.buckets
    )


def test_a_hook_trains_and_what_cannot_be_known_is_null(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    assert_finished(run_ranks(arguments(run_dir, "hier", f"ddp.hook={FP16}")))
    assert len(set(final_sums(run_dir))) == 1
    (tmp_path / "plain").mkdir()
    assert_finished(run_ranks(arguments(tmp_path / "plain", "hier")))
    assert final_sums(run_dir) != final_sums(tmp_path / "plain")  # halves of a float were summed
    for each in records(run_dir):
        assert each.header is not None
        assert each.header["plan"]["algorithm"] == f"hook {FP16.replace(':', '.')}"
        assert each.header["hook_file"]["function"] == "fp16_compress_hook"
        assert {step.inter_node_bytes for step in each.steps} == {None}
        assert all(len(step.buckets) == len(each.header["plan"]["buckets"]) for step in each.steps)
    assert '"step_seconds": null' in (run_dir / "prediction.json").read_text()


def test_a_hook_does_in_torchs_class_what_it_does_in_ours(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """Two numbers are summed, either way round; so the ends are equal to the bit."""
    hook = f"ddp.hook={FP16}"
    for name, sets in (("ours", [hook]), ("torchs", [hook, "ddp.wrapper=torch"])):
        assert_finished(run_ranks(arguments(tmp_path / name, "hier", *sets)))
    assert final_sums(tmp_path / "torchs") == final_sums(tmp_path / "ours")
    rank = records(tmp_path / "torchs")[0]
    assert rank.header is not None
    assert (rank.header["plan"], rank.header["hook_file"]["function"]) == (
        None,
        "fp16_compress_hook",
    )
    prediction = (tmp_path / "torchs" / "prediction.json").read_text()
    assert "what a hook sends is not known beforehand" in prediction


def hooked(folder: Path, fault: str) -> list[dict[str, object]]:
    (folder / "hooks.py").write_text(HOOKS.format(fault=fault))
    return arguments(folder / "run", "hier", f"ddp.hook={folder}/hooks.py:mean")


def test_a_hook_of_a_file_equals_the_native_sum(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert_finished(run_ranks(hooked(tmp_path, "pass")))
    (header,) = {rank.header["plan"]["algorithm"] for rank in records(tmp_path / "run")}
    sha256 = hashlib.sha256((tmp_path / "hooks.py").read_bytes()).hexdigest()
    assert header == f"hook hooks@{sha256[:12]}.mean"
    (tmp_path / "native").mkdir()
    native = arguments(tmp_path / "native", "native", "ddp.bucket_cap_mb=0.05")
    assert_finished(run_ranks(native))
    assert final_sums(tmp_path / "run") == final_sums(tmp_path / "native")  # two ranks: one order


def test_a_hook_that_fails_is_told_with_its_line_on_both(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    fault = "assert len(CALLS) < 5 or os.environ['DDPLAB_NODE'] != 'node1', 'enough'"
    first, second = failures(run_ranks(hooked(tmp_path, fault)))
    assert first == second
    assert f"hook: {tmp_path}/hooks.py:9: AssertionError: enough" in first
    assert first.startswith("rank 1: ") and "\n" not in first


def test_ranks_with_other_hooks_are_refused(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = hooked(tmp_path, "pass")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "hooks.py").write_text(HOOKS.format(fault="x = 1"))
    job = asked[1]["job"]
    assert isinstance(job, dict)
    job["ddp"]["hook"] = f"{tmp_path}/other/hooks.py:mean"
    first, second = failures(run_ranks(asked))
    assert first == second
    assert "ddp.hook: rank 1 ran another file than rank 0; every node has the same file" in first


def test_an_algorithm_that_fails_on_one_rank_stops_both(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\nfrom own_algorithm import build as good\n"
        "def build(fabric):\n"
        "    return 1 // (os.environ['DDPLAB_NODE'] != 'node1') and good(fabric)\n"
    )
    (tmp_path / OWN.name).write_text(OWN.read_text())
    sets = f"ddp.algorithm={tmp_path}/mine.py:build"
    first, second = failures(run_ranks(arguments(tmp_path / "run", "hier", sets)))
    assert first == second
    assert first.startswith(f"rank 1: algorithm: {tmp_path}/mine.py:4: ZeroDivisionError: integer")
