"""One rank, no network: what a step and a baseline block do, beside the same in plain torch."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from ddp.calibrate import Calibration
from ddp.parallel import DistributedDataParallel
from jobs.data import Batches, Windows
from jobs.events import Events
from jobs.models import build_model, next_byte_loss
from jobs.modelspec import ByteGptSpec
from jobs.optimizers import build_optimizer
from jobs.rankrun import RankRun
from jobs.spec import DdpSpec, TrainSpec
from jobs.train import Trainer, baseline_block

MODEL = ByteGptSpec(layers=1, width=8, heads=2, context=8)
SPEC = TrainSpec(lr=0.01)
BATCH_SIZE = 2
TEXT = b"the quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def batches() -> Batches:
    return Batches(Windows(TEXT, MODEL.context), BATCH_SIZE, 0, 1, seed=0)


@contextmanager
def training(spec: TrainSpec, model: nn.Module | None = None) -> Iterator[Trainer]:
    ddp = DistributedDataParallel(model or build_model(MODEL, seed=0).module, timeout_s=5)
    optimizer = build_optimizer(spec, ddp.module)
    try:
        yield Trainer(ddp, optimizer, batches(), spec, BATCH_SIZE, nic=None)
    finally:
        ddp.close()


def parameters(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def trained_by(spec: TrainSpec, num_steps: int) -> list[Tensor]:
    with training(spec) as trainer:
        for step in range(num_steps):
            trainer.step(step)
        return parameters(trainer.ddp.module)


def trained_plainly(spec: TrainSpec, num_steps: int) -> list[Tensor]:
    """The same, without anything of ours but model and data."""
    model, data = build_model(MODEL, seed=0).module, batches()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=spec.lr)
    if spec.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr, fused=True)
    for _ in range(num_steps):
        for _ in range(spec.accumulate):
            inputs, targets = data.next()
            (next_byte_loss(model(inputs), targets) / spec.accumulate).backward()
        if spec.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "sgd"}, {"accumulate": 3}, {"clip_norm": 0.1}],
    ids=str,
)
def test_one_rank_trains_as_plain_torch_does(changes: dict[str, object]) -> None:
    spec = SPEC.model_copy(update=changes)
    expected = trained_plainly(spec, 4)
    assert all(map(torch.equal, trained_by(spec, 4), expected))
    if changes:
        assert not all(map(torch.equal, expected, trained_plainly(SPEC, 4)))


def test_the_loss_falls() -> None:
    with training(SPEC) as trainer:
        losses = [trainer.step(step).record.loss for step in range(40)]
    assert None not in losses
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_what_a_step_records() -> None:
    spec = SPEC.model_copy(update={"accumulate": 2})
    with training(spec) as trainer:
        trainer.step(0)
        measured = trainer.step(1)
    record = measured.record
    expected = build_model(MODEL, seed=0).module, batches()
    assert record.step == 1
    assert record.samples == 2 * BATCH_SIZE
    assert record.loss is not None
    start_ns, end_ns = measured.backward
    assert record.t_ns < start_ns < end_ns <= record.t_ns + record.step_s * 1e9
    parts = ("data", "forward", "backward", "comm_exposed", "optimizer", "other")
    assert sum(getattr(record, f"{part}_s") for part in parts) == pytest.approx(record.step_s)
    assert all(getattr(record, f"{part}_s") > 0 for part in parts)
    gradient_bytes = sum(p.nbytes for p in expected[0].parameters())
    assert sum(bucket.bytes for bucket in record.buckets) == gradient_bytes
    assert all(start_ns < bucket.ready_ns <= bucket.end_ns for bucket in record.buckets)
    assert (record.nic_tx_bytes, record.nic_rx_bytes) == (None, None)


def test_the_loss_of_a_step_is_the_mean_over_its_micro_steps() -> None:
    with training(SPEC.model_copy(update={"accumulate": 2})) as trainer:
        loss = trainer.step(0).record.loss
    model, data = build_model(MODEL, seed=0).module, batches()
    micro = [
        next_byte_loss(model(inputs), targets).item()
        for inputs, targets in (data.next(), data.next())
    ]
    assert loss == pytest.approx(sum(micro) / 2)


def test_a_loss_that_is_no_number_is_absent() -> None:
    with training(SPEC) as trainer:
        with torch.no_grad():
            trainer.ddp.module.head.weight.fill_(float("nan"))
        assert trainer.step(0).record.loss is None


class Noisy(nn.Module):
    """Draws random numbers and keeps a buffer, as dropout and batch norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model(MODEL, seed=0).module
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("never_saved", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.never_saved += torch.rand(3) + random.random()
        return nn.functional.dropout(self.inner(x), 0.2)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_a_baseline_block_leaves_no_trace(optimizer: str, warmup_steps: int) -> None:
    spec = SPEC.model_copy(update={"optimizer": optimizer})

    def train(baseline_steps: int) -> tuple[list[Tensor], list[float | None]]:
        torch.manual_seed(5)
        with training(spec, Noisy()) as trainer:
            torch.manual_seed(6)
            random.seed(6)
            for step in range(warmup_steps):
                trainer.step(step)
            if baseline_steps:
                baseline_block(trainer, baseline_steps, lambda: None, lambda _: None)
            losses = [trainer.step(step).record.loss for step in range(3)]
            module = trainer.ddp.module
            return [*parameters(module), *(buffer.clone() for buffer in module.buffers())], losses

    tensors, losses = train(baseline_steps=0)
    tensors_after, losses_after = train(baseline_steps=5)
    assert losses == losses_after
    assert all(map(torch.equal, tensors, tensors_after))


def test_a_baseline_block_trains_meanwhile_with_nothing_sent() -> None:
    told: list[int] = []
    barriers: list[int] = []
    with training(SPEC) as trainer:
        measured = baseline_block(
            trainer,
            4,
            lambda: barriers.append(len(told)),
            lambda step: told.append(step.record.step),
        )
        assert trainer.ddp.collective.name == "hierarchical"
    assert told == [step.record.step for step in measured] == [0, 1, 2, 3]
    assert barriers == [0, 1, 2, 3]
    losses = [step.record.loss for step in measured]
    assert len(set(losses)) == 4  # it does train
    assert all(step.record.inter_node_bytes == 0 for step in measured)
    assert all(len(step.record.buckets) > 0 for step in measured)


@pytest.mark.parametrize(("each", "reduced"), [(False, 1), (True, 3)])
def test_micro_steps_are_reduced_together_or_one_by_one(each: bool, reduced: int) -> None:
    spec = SPEC.model_copy(update={"accumulate": 3, "optimizer": "sgd"})
    with training(spec) as trainer:
        trainer.reduces_each = each
        record = trainer.step(0).record
        trained = parameters(trainer.ddp.module)
        num_buckets = len(trainer.ddp.plan.buckets)
    assert [bucket.index for bucket in record.buckets] == list(range(num_buckets)) * reduced
    for found, plain in zip(trained, trained_plainly(spec, 1), strict=True):
        torch.testing.assert_close(found, plain)


def test_a_meeting_is_a_wait_with_a_place_of_its_own() -> None:
    met_ns: list[int] = []

    def meet() -> None:
        time.sleep(0.02)
        met_ns.append(time.monotonic_ns())

    with training(SPEC) as trainer:
        trainer.meet = meet
        record = trainer.step(0).record
        assert len(met_ns) == 1
        baseline_block(trainer, 3, lambda: None, lambda _: None)
        assert (len(met_ns), trainer.meet) == (1, meet)
        trainer.step(1)
        assert len(met_ns) == 2
        num_buckets = len(trainer.ddp.plan.buckets)
    *reduced, meeting = record.buckets
    assert (meeting.index, meeting.bytes, len(reduced)) == (num_buckets, 0, num_buckets)
    assert meeting.ready_ns == meeting.start_ns <= met_ns[0] - 20e6
    assert (meeting.start_ns, meeting.end_ns) in record.exposed
    assert record.comm_exposed_s >= 0.02
    parts = ("data", "forward", "backward", "comm_exposed", "optimizer", "other")
    assert sum(getattr(record, f"{part}_s") for part in parts) == pytest.approx(record.step_s)


@pytest.mark.parametrize("set_epoch", [True, False])
def test_passes_of_a_baseline_are_taken_back(set_epoch: bool) -> None:
    with training(SPEC) as trainer:
        windows = Windows(TEXT[: 10 * MODEL.context + 1], MODEL.context)
        trainer.batches = Batches(windows, BATCH_SIZE, 0, 1, seed=0, set_epoch=set_epoch)
        for step in range(7):
            trainer.step(step)
        baseline_block(trainer, 20, lambda: None, lambda _: None)
        trainer.step(7)
        orders = trainer.batches.orders
    assert len(orders) == 2  # 16 samples of 10 a pass; 56 with the baseline
    assert (orders[0] == orders[1]) == (not set_epoch)


class Counted:
    """Stands in for the NIC: counts what the test says was sent."""

    def __init__(self) -> None:
        self.sent = self.told = 0

    def since_last(self) -> tuple[int, int]:
        before, self.told = self.told, self.sent
        return self.sent - before, 0


def test_bytes_sent_between_steps_belong_to_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the baseline's barriers, and those with which ranks agree on a prediction."""
    nic = Counted()

    def barrier() -> None:
        nic.sent += 1_000

    monkeypatch.setattr(dist, "barrier", barrier)
    with training(SPEC) as trainer:
        trainer.nic = nic  # type: ignore[assignment]
        told = SimpleNamespace(rank=0, world_size=1, node_of=[0], links=None, run_dir=tmp_path)
        told.job = SimpleNamespace(ddp=DdpSpec())
        run = RankRun(told, Events(None), None, trainer, Calibration(None, None, None))  # type: ignore[arg-type]
        measured = baseline_block(trainer, 3, barrier, lambda _: None)
        first = trainer.step(0)
        run._predict(measured)
        second = trainer.step(1)
    assert nic.sent == 4_000
    assert [first.record.nic_tx_bytes, second.record.nic_tx_bytes] == [0, 0]


def test_the_baselines_barrier_is_outside_the_clock() -> None:
    with training(SPEC) as trainer:
        left_ns: list[int] = []

        def barrier() -> None:
            left_ns.append(time.monotonic_ns())

        measured = baseline_block(trainer, 3, barrier, lambda _: None)
    for left, step in zip(left_ns, measured, strict=True):
        assert step.record.t_ns >= left
