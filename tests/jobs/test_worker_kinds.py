"""Whole ranks over loopback that train each kind of model, beside one process that does it all."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp.plan import ReductionPlan
from ddp.reference import Reference
from jobs.argument import RankArgument
from jobs.data import Batches, Windows
from jobs.models import build_model
from jobs.optimizers import build_optimizer
from jobs.records import RankRecords
from jobs.text import load_data
from tests.jobs.models.samples import EXAMPLE
from tests.jobs.ranks import RunRanks, arguments, assert_finished, final_sums, records

KINDS = {
    "byte-gpt": ("hier", ()),
    "mini-mlp": ("mini-mlp", ("model.width=16", "model.context=16")),
    "deep-mlp": ("deep", ("model.layers=5", "model.width=16", "model.context=16")),
    "resnet": ("resnet-bn", ("model.layers=1", "model.width=8", "model.side=4")),
    "experts": ("unused-flagged", ("model.experts=3", "model.width=16", "model.context=16")),
    "paced": (
        "7b-thousandth",
        (
            *("model.layers=5", "model.layer_bytes=20004"),
            *("model.layer_forward_ms=1", "model.layer_backward_ms=2"),
        ),
    ),
    "import": (str(EXAMPLE.with_suffix(".yaml")), ("model.context=16", "model.settings.width=8")),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 40)
    return path


def asked(folder: Path, text: Path, kind: str, *sets: str) -> list[dict[str, Any]]:
    job, own = KINDS[kind]
    return arguments(folder, job, *own, f"data.path={text}", "ddp.algorithm=ring", *sets)


def sha256(module: nn.Module) -> str:
    """As a rank states it: names, shapes, dtypes and bytes of its parameters."""
    digest = hashlib.sha256()
    for name, tensor in module.named_parameters():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def trained_by_one_process(told: list[RankArgument], plan: ReductionPlan) -> str:
    """The checksum that all ranks should end with: warm-up and measured steps, no baseline."""
    job = told[0].job
    windows = Windows(load_data(job.data).content, job.model.context)
    model = build_model(job.model, job.train.seed)
    ranks = [
        Batches(windows, job.data.batch_size, each.rank, each.world_size, job.train.seed)
        for each in told
    ]
    optimizer = build_optimizer(job.train, model.module)
    reference = Reference(model.module, plan)

    def run_rank(rank: int) -> None:
        inputs, targets = ranks[rank].next()
        model.loss(reference(inputs), targets).backward()

    for _ in range(job.train.warmup_steps + job.train.steps):
        reference.backward(run_rank)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return sha256(model.module)


@EVERY_KIND
def test_ranks_end_with_the_bytes_of_one_process(
    run_ranks: RunRanks, tmp_path: Path, text: Path, kind: str
) -> None:
    ranks = asked(tmp_path / "run", text, kind)
    assert_finished(run_ranks(ranks))
    written = records(tmp_path / "run")
    header = written[0].header
    assert header is not None
    for each in ranks:
        each |= {"master_port": 1, "listen_fd": None}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks: another number adds up in another order
    told = [RankArgument.model_validate(each) for each in ranks]
    expected = trained_by_one_process(told, ReductionPlan.from_json(header["plan"]))
    torch.set_num_threads(threads)
    assert told[0].job.model.kind == kind
    assert final_sums(tmp_path / "run") == [expected, expected]
    assert header["initial_params_sha256"] != expected
    _check_what_was_reduced(written)


def _check_what_was_reduced(written: list[RankRecords]) -> None:
    header = written[0].header
    assert header is not None
    assert header["data"]["bytes"] == 45 * 40
    expected = header["gradient_bytes"]
    for rank in written:
        for record in rank.steps:
            assert sum(bucket.bytes for bucket in record.buckets) == expected
            assert record.inter_node_bytes == pytest.approx(expected, rel=0.02)
    first, second = written
    assert all(a.loss != b.loss for a, b in zip(first.steps, second.steps, strict=True))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_paced_layers_take_their_time(
    run_ranks: RunRanks, tmp_path: Path, text: Path, accumulate: int
) -> None:
    ranks = asked(tmp_path / "run", text, "paced", f"train.accumulate={accumulate}")
    assert_finished(run_ranks(ranks))
    for rank in records(tmp_path / "run"):
        assert rank.header is not None
        assert rank.header["gradient_bytes"] == 5 * 20_004
        assert rank.header["model_file"] is None
        assert all(record.forward_s >= accumulate * 0.005 for record in rank.steps)
        assert all(record.backward_s >= accumulate * 0.010 for record in rank.steps)
    assert len(set(final_sums(tmp_path / "run"))) == 1


@pytest.mark.parametrize("kind", ["mini-mlp", "deep-mlp", "resnet", "experts", "import"])
def test_every_kind_can_be_paced(
    run_ranks: RunRanks, tmp_path: Path, text: Path, kind: str
) -> None:
    pace = "pace={forward_ms: 6, backward_ms: 9}"
    assert_finished(run_ranks(asked(tmp_path / "run", text, kind, pace)))
    for rank in records(tmp_path / "run"):
        assert all(record.forward_s >= 0.006 for record in rank.steps)
        assert all(record.backward_s >= 0.009 for record in rank.steps)


def test_the_file_of_ones_own_model_is_recorded(
    run_ranks: RunRanks, tmp_path: Path, text: Path
) -> None:
    assert_finished(run_ranks(asked(tmp_path / "run", text, "import")))
    for rank in records(tmp_path / "run"):
        assert rank.header is not None
        assert rank.header["model_file"] == {
            "path": str(EXAMPLE),
            "function": "build",
            "sha256": hashlib.sha256(EXAMPLE.read_bytes()).hexdigest(),
        }
        assert rank.header["data"]["sha256"] == hashlib.sha256(text.read_bytes()).hexdigest()
