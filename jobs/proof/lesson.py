"""The lesson's table: a small model trained on all ranks and in one process, step beside step.

Owns the model, its data and the loop, those of docs/lesson/main.py; ranks use the wrapper, the one
process uses the reference with the ranks' own plan.
Shapes: a batch of one rank and step is (BATCH, FEATURES) -> (BATCH, 1).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddp import DistributedDataParallel, Fabric, ReductionPlan, Reference
from jobs.proof.lines import Line, first
from jobs.proof.ranks import TIMEOUT_S

SEED = 7
NUM_SAMPLES, FEATURES, WIDTH = 256, 16, 32
BATCH, EPOCHS, LEARNING_RATE = 8, 2, 0.2
TOLERANCE = 1e-6
"""Between the loss of all samples at once and the mean of the ranks' losses."""
FABRIC = Fabric((0, 0, 1, 1))
ALGORITHM = "hierarchical"


@dataclass(frozen=True)
class TableRow:
    """One step; the checksums are of all parameters after it, `sums` those of each rank."""

    step: int
    loss_single: float
    loss_ranks: float
    sum_single: str
    sums: tuple[str, ...]

    @property
    def difference(self) -> float:
        return abs(self.loss_ranks - self.loss_single)

    def first_difference(self) -> str | None:
        for rank, found in enumerate(self.sums):
            if found != self.sum_single:
                return (
                    f"step {self.step}: rank {rank} holds parameters {found}, "
                    f"one process {self.sum_single}"
                )
        if not self.difference <= TOLERANCE:
            return (
                f"step {self.step}: loss {self.loss_ranks:.6f} on the ranks, "
                f"{self.loss_single:.6f} in one process"
            )
        return None


@dataclass(frozen=True)
class Table:
    rows: tuple[TableRow, ...]
    num_parameters: int

    def line(self) -> Line:
        """What the table comes to."""
        says = (
            f"{len(self.rows)} steps: every rank holds the bytes of one process; "
            f"losses within {TOLERANCE:.0e}"
        )
        return Line("training", says, first(row.first_difference() for row in self.rows))


def build() -> nn.Module:
    """Three linear layers, from torch's generator."""
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 1),
    )


def dataset() -> tuple[Tensor, Tensor]:
    """Inputs (NUM_SAMPLES, FEATURES) and targets (NUM_SAMPLES, 1)."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(NUM_SAMPLES, FEATURES, generator=generator)
    return inputs, torch.tanh(inputs @ torch.randn(FEATURES, 1, generator=generator))


def batches(rank: int, num_ranks: int) -> list[Tensor]:
    """Indices of each step's samples: each epoch one order for all ranks, dealt out in turn."""
    steps: list[Tensor] = []
    for epoch in range(EPOCHS):
        generator = torch.Generator().manual_seed(SEED + epoch)  # as DistributedSampler has it
        order = torch.randperm(NUM_SAMPLES, generator=generator)
        steps += torch.split(order[rank::num_ranks], BATCH)
    return steps


def loss_of(module: nn.Module, samples: tuple[Tensor, Tensor], indices: Tensor) -> Tensor:
    inputs, targets = samples
    return nn.functional.mse_loss(module(inputs[indices]), targets[indices])


def descend(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=LEARNING_RATE)


def checksum(tensors: Iterable[Tensor]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of all their bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def train_on_rank(rank: int, num_ranks: int) -> dict[str, Any]:
    """The plan of each step on this rank, its loss, and the checksum after it."""
    torch.manual_seed(SEED + rank)  # another start on each rank: the broadcast must mend it
    module, samples = build(), dataset()
    wrapped = DistributedDataParallel(
        module, algorithm=ALGORITHM, fabric=FABRIC, timeout_s=TIMEOUT_S
    )
    rows, plans = [], []
    for indices in batches(rank, num_ranks):
        plans.append(wrapped.plan.to_json())
        module.zero_grad()
        loss = loss_of(wrapped, samples, indices)
        loss.backward()  # type: ignore[no-untyped-call]
        descend(module)
        rows.append([loss.item(), checksum(module.parameters())])
    wrapped.close()
    return {"rows": rows, "plans": plans}


def train_here(
    plans: Sequence[ReductionPlan], num_ranks: int
) -> tuple[list[tuple[float, str]], int]:
    """The same in one process, `plans[step]`: loss of all samples of a step at once, checksum."""
    torch.manual_seed(SEED)
    module, samples, rows = build(), dataset(), []
    reference = Reference(module, plans[0])
    steps = zip(*(batches(rank, num_ranks) for rank in range(num_ranks)), strict=True)
    for plan, step in zip(plans, steps, strict=True):
        loss = loss_of(module, samples, torch.cat(step)).item()

        def run_rank(rank: int, step: Sequence[Tensor] = step) -> None:
            loss_of(reference, samples, step[rank]).backward()  # type: ignore[no-untyped-call]

        reference.plan = plan
        module.zero_grad()
        reference.backward(run_rank)
        descend(module)
        rows.append((loss, checksum(module.parameters())))
    return rows, sum(parameter.numel() for parameter in module.parameters())


def train_in_large_batches(num_ranks: int) -> list[float]:
    """Losses where each step takes the samples of all ranks in one batch, as plain torch would."""
    torch.manual_seed(SEED)
    module, samples, losses = build(), dataset(), []
    for step in zip(*(batches(rank, num_ranks) for rank in range(num_ranks)), strict=True):
        module.zero_grad()
        loss = loss_of(module, samples, torch.cat(step))
        loss.backward()  # type: ignore[no-untyped-call]
        descend(module)
        losses.append(loss.item())
    return losses


def judge(answers: Sequence[Any]) -> Table:
    """The ranks' rows beside those of one process with the plans of rank 0."""
    plans = [ReductionPlan.from_json(plan) for plan in answers[0]["plans"]]
    rows, num_parameters = train_here(plans, len(answers))
    table = []
    for number, (loss, wanted) in enumerate(rows):
        found = [answer["rows"][number] for answer in answers]
        mean = sum(each[0] for each in found) / len(found)
        sums = tuple(each[1] for each in found)
        table.append(TableRow(number + 1, loss, mean, wanted, sums))
    return Table(tuple(table), num_parameters)


def large_batch_line(table: Table) -> Line:
    """The whole training against one whose batches hold all ranks' samples."""
    losses = train_in_large_batches(len(table.rows[0].sums))
    worst = max(
        (abs(loss - row.loss_ranks), row.step) for loss, row in zip(losses, table.rows, strict=True)
    )
    difference, step = worst
    says = f"{len(losses)} steps in plain torch, all samples in one batch: losses within 1e-05"
    text = f"step {step}: losses differ by {difference:.1e}" if not difference <= 1e-5 else None
    return Line("one large batch", says, text)
