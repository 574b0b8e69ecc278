"""What each rank of the overlap test runs: one model with overlap and one without, in turn.

Both start alike, see the same data and keep records of their own, as a job's ranks do; beside them
stands what the node's NIC had received when the last gradient was there.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp import DistributedDataParallel, Fabric
from jobs.argument import RankArgument
from jobs.data import Batches, Windows
from jobs.models import build_model
from jobs.optimizers import build_optimizer
from jobs.pace import Pace
from jobs.phases import NicCounters
from jobs.records import file_writer
from jobs.rendezvous import rendezvous
from jobs.text import load_data
from jobs.train import Trainer

VARIANTS = ("overlap", "after")


def main(argument: dict[str, Any]) -> None:
    told = RankArgument.model_validate_json(json.dumps(argument))
    torch.set_num_threads(told.threads)
    with rendezvous(told), ExitStack() as stack:
        variants = [stack.enter_context(_variant(told, name)) for name in VARIANTS]
        dist.barrier()
        for number in range(told.job.train.warmup_steps + told.job.train.steps):
            for variant in variants if number % 2 else reversed(variants):
                dist.barrier()
                variant.step(number - told.job.train.warmup_steps)
        dist.barrier()


@dataclass
class Variant:
    trainer: Trainer
    writer: file_writer
    nic: NicCounters
    early_bytes: list[int]
    received_bytes: int = 0

    def step(self, number: int) -> None:
        """Steps with a number below 0 are not written down."""
        _, before = self.nic.total()
        record = self.trainer.step(number).record
        if number >= 0:
            self.writer.step(record)
            self.early_bytes.append(self.received_bytes - before)

    def on_gradient(self, _parameter: Tensor) -> None:
        _, self.received_bytes = self.nic.total()


@contextmanager
def _variant(told: RankArgument, name: str) -> Iterator[Variant]:
    job, pace = told.job, told.job.pace
    assert pace is not None
    folder = Path(told.run_dir) / name
    folder.mkdir(exist_ok=True)
    built = build_model(job.model, job.train.seed)
    model = built.module
    ddp = DistributedDataParallel(
        model,
        algorithm=job.ddp.algorithm,
        bucket_cap_mb=job.ddp.bucket_cap_mb,
        overlap=name == "overlap",
        fabric=Fabric(tuple(told.node_of)),
        timeout_s=job.ddp.timeout_s,
    )
    windows = Windows(load_data(job.data).content, job.model.context)
    batches = Batches(windows, job.data.batch_size, told.rank, told.world_size, job.train.seed)
    optimizer = build_optimizer(job.train, model)
    trainer = Trainer(ddp, optimizer, batches, job.train, job.data.batch_size, nic=None)
    with (
        Pace(model, built.layers, pace.forward_ms / 1e3, pace.backward_ms / 1e3),
        file_writer(folder, told.rank) as writer,
    ):
        variant = Variant(trainer, writer, NicCounters(told.interface), [])
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(variant.on_gradient)
        writer.header({"rank": told.rank, "node": told.node})
        yield variant
        writer.end({"params_sha256": ddp.verify_parameters(), "early_bytes": variant.early_bytes})
    ddp.close()
