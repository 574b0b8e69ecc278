"""`auto` on a shaped lab: what is chosen is told, and one process replays it to the same bytes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ddp.digest import sha256_of
from ddp.plan import ReductionPlan
from ddp.reference import Reference
from jobs.data import Batches, Windows
from jobs.models import build_model
from jobs.optimizers import build_optimizer
from jobs.spec import JobSpec
from jobs.text import load_data
from tests.live.lab import SMALL, TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]

SETS = (*SMALL, "train.steps=4", "train.warmup_steps=1", "ddp.bucket_cap_mb=0.1")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    with lab(tmp_path_factory.mktemp("auto"), "2x2", "--rate", "100mbit") as it:
        yield it


def test_a_run_ends_as_the_reference_of_its_plan_does(slow: TestLab) -> None:
    summary = _replayable(slow)
    assert (summary["status"], summary["algorithm"], summary["ranks_agree"]) == ("ok", "auto", True)
    run = json.loads((slow.runs / summary["run_id"] / "run.json").read_text())
    plan = ReductionPlan.from_json(run["plan"])
    assert plan.sha256 == summary["plan_sha256"]
    assert len(plan.buckets) > 1
    assert summary["predicted"]["step_seconds"] > 0
    assert summary["params_sha256"] == _trained_alone(JobSpec.model_validate(run["job"]), plan)


def test_the_screen_tells_what_was_chosen(slow: TestLab) -> None:
    sets = [word for setting in SETS for word in ("--set", setting)]
    shown = slow.command("run", "hier", "--lab", slow.name, *sets, "--set", "ddp.algorithm=auto")
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "auto: For each bucket what is fastest here, as measured before the run." in words
    run = json.loads((slow.runs / "latest" / "run.json").read_text())
    for bucket in ReductionPlan.from_json(run["plan"]).buckets:
        assert f"{bucket.algorithm} for" in words.partition("auto chose")[2]


def _replayable(it: TestLab) -> dict[str, Any]:
    """A run without a bucket that went through native, which wins here by an accident at most."""
    for _ in range(3):
        summary = it.run("auto", *SETS)
        run = json.loads((it.runs / summary["run_id"] / "run.json").read_text())
        if "native" not in {bucket["algorithm"] for bucket in run["plan"]["buckets"]}:
            break
    return summary


def _trained_alone(job: JobSpec, plan: ReductionPlan) -> str:
    """The checksum of the job's model, trained in this process on what each rank had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = build_model(job.model, job.train.seed)
    optimizer = build_optimizer(job.train, model.module)
    reference = Reference(model.module, plan)
    windows = Windows(load_data(job.data).content, job.model.context)
    ranks = range(len(plan.node_of))
    shares = [
        Batches(windows, job.data.batch_size, rank, len(ranks), job.train.seed) for rank in ranks
    ]

    def run_rank(rank: int) -> None:
        inputs, targets = shares[rank].next()
        model.loss(reference(inputs), targets).backward()  # type: ignore[no-untyped-call]

    for _ in range(job.train.warmup_steps + job.train.steps):
        reference.backward(run_rank)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.set_num_threads(threads)
    return sha256_of(list(model.module.named_parameters()))
