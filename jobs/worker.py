"""What one rank does from its start to its end: `main`, called by the agent in a fresh process.

Owns the order of the run and what is written when. Each part lives in a room of its own.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ddp.calibrate import Calibration
from ddp.errors import DdpError, ReductionFailed
from ddp.fabric import Fabric
from ddp.parallel import DistributedDataParallel
from jobs.argument import RankArgument
from jobs.data import Batches, Text, Windows, check_enough, load_data
from jobs.errors import JobError
from jobs.events import Events, PhaseName
from jobs.inject import Delay, check_place
from jobs.models import ByteGpt, build_model
from jobs.pace import Pace
from jobs.phases import NicCounters
from jobs.predict import (
    Compute,
    ComputeStep,
    predict,
    priced_fabric,
    slowest_rank,
    write_prediction,
)
from jobs.records import RecordWriter, StepRecord
from jobs.rendezvous import agree_on_data, rendezvous
from jobs.train import MeasuredStep, Trainer, baseline_block, build_optimizer


def main(argument: dict[str, Any]) -> None:
    """Runs one rank. A failure is told in one message, and its exit status is 1."""
    events = Events.from_environment()
    try:
        run_rank(RankArgument.model_validate_json(json.dumps(argument)), events)
    except Exception as exc:
        origin = exc.__cause__ if isinstance(exc, ReductionFailed) else exc
        if not isinstance(origin, JobError | DdpError | None):
            traceback.print_exc()
        sys.stderr.write(f"{told_in_words(exc)}\n")
        events.failed(told_in_words(exc))
        raise SystemExit(1) from None


def told_in_words(error: Exception) -> str:
    """One message for people: ours as they are, others with their kind."""
    if isinstance(error, JobError | DdpError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def run_rank(told: RankArgument, events: Events) -> None:
    """The whole life of a rank. Raises JobError or DdpError where a person can do something."""
    torch.set_num_threads(told.threads)
    text = load_data(told.job.data)
    windows = _windows(told, text)
    with rendezvous(told) as store:
        train_job(told, text, windows, store, events)


def train_job(
    told: RankArgument, text: Text, windows: Windows, store: Store, events: Events
) -> None:
    """One job among ranks that have found one another; several may follow one another."""
    with ready_to_train(told, text, windows, store, events) as rank_run:
        rank_run.run()


@contextmanager
def ready_to_train(
    told: RankArgument, text: Text, windows: Windows, store: Store, events: Events
) -> Iterator["RankRun"]:
    """A job that is set up on every rank; several may be at once, and then take turns."""
    with RecordWriter(Path(told.run_dir), told.rank) as writer:
        agree_on_data(told, store, text.sha256)
        model = build_model(told.job.model, told.job.train.seed)
        delay = Delay(told.job.inject, told.rank)
        delay.into_model(model)  # before pacing, so that it comes on top of the floors
        with _paced(told, model), _wrapped(told, model) as ddp:
            check_place(told.job.inject, told.world_size, len(ddp.plan.buckets))
            # from here on each rank draws its own numbers; the parameters are the same already
            torch.manual_seed(told.job.train.seed + told.rank)
            calibration = ddp.calibrate()
            ddp.communication()  # what came before the first step belongs to none
            trainer = _trainer(told, ddp, windows, delay)
            writer.header(_header(told, ddp, text, windows, calibration))
            dist.barrier()  # nobody sends gradients before all NIC counters are read
            events.phase("start", 1, 1)
            with ddp.reduce_with(delay.into_collective(ddp.collective)):
                yield RankRun(told, events, writer, trainer, calibration)


@dataclass
class RankRun:
    """A rank that is ready to train: warm-up, baseline, prediction, training, baseline, end."""

    told: RankArgument
    events: Events
    writer: RecordWriter
    trainer: Trainer
    calibration: Calibration

    _sent: list[StepRecord] = field(default_factory=list)
    _baseline_done: int = 0

    def run(self) -> None:
        job = self.told.job
        half = job.baseline_steps // 2
        self.begin(half)
        self.train(range(job.train.steps))
        self.baseline(1, job.baseline_steps - half)
        self.finish()

    def begin(self, baseline_steps: int) -> None:
        """All that comes before the first measured step, which it predicts."""
        total = self.told.job.train.warmup_steps
        for number in range(total):
            self._step("warm_up", number, total)
        self._predict(self.baseline(0, baseline_steps))

    def train(self, numbers: Iterable[int]) -> None:
        """The measured steps of these numbers."""
        for number in numbers:
            self.writer.step(self._step("train", number, self.told.job.train.steps).record)

    def baseline(self, block: int, num_steps: int) -> list[MeasuredStep]:
        """Steps with nothing sent, after which all is as it was before."""

        def write(measured: MeasuredStep) -> None:
            self.writer.baseline(block, measured.record)
            self._baseline_done += 1
            self._tell("no_network", self._baseline_done, self.told.job.baseline_steps, measured)

        return baseline_block(self.trainer, num_steps, dist.barrier, write)

    def _step(self, phase: PhaseName, number: int, total: int) -> MeasuredStep:
        measured = self.trainer.step(number)
        self._sent.append(measured.record)
        self._tell(phase, number + 1, total, measured)
        return measured

    def _tell(self, phase: PhaseName, done: int, total: int, measured: MeasuredStep) -> None:
        self.events.phase(phase, done, total, measured.record.loss, measured.record.step_s)

    def _predict(self, baseline: list[MeasuredStep]) -> None:
        own = [asdict(compute_step(measured)) for measured in baseline]
        ranks: list[Any] = [None] * self.told.world_size
        dist.all_gather_object(ranks, own)
        if self.told.rank == 0:
            steps = [[ComputeStep(**step) for step in steps] for steps in ranks]
            self._write_prediction(slowest_rank(steps))
        dist.barrier()  # no rank begins what was predicted before the prediction stands
        self.trainer.forget_nic_bytes()

    def _write_prediction(self, compute: Compute) -> None:
        told = self.told
        fabric = priced_fabric(told.node_of, told.links, self.calibration)
        plan, overlap = self.trainer.ddp.plan, told.job.ddp.overlap
        prediction = predict(plan, fabric, compute, overlap=overlap) if fabric else None
        write_prediction(Path(told.run_dir), prediction, compute, told.links, self.calibration)

    def finish(self) -> None:
        """What the rank ended with; all ranks end together."""
        nic = self.trainer.nic
        sent, received = nic.total() if nic else (None, None)
        params_sha256 = self.trainer.ddp.verify_parameters()
        end = {
            "params_sha256": params_sha256,
            "steps": self.told.job.train.steps,
            "intra_node_bytes": _total([record.intra_node_bytes for record in self._sent]),
            "inter_node_bytes": _total([record.inter_node_bytes for record in self._sent]),
            "nic_tx_bytes": sent,
            "nic_rx_bytes": received,
        }
        self.writer.end(end)
        dist.barrier()  # rank 0 holds the store: nobody may still need it when it leaves
        self.events.phase("finish", 1, 1)
        self.events.finished(params_sha256, self.told.job.train.steps)


def compute_step(measured: MeasuredStep) -> ComputeStep:
    """What the cost model needs of a step in which nothing was sent."""
    start_ns, end_ns = measured.backward
    buckets = sorted(measured.record.buckets, key=lambda bucket: bucket.index)
    return ComputeStep(
        step_s=measured.record.step_s,
        backward_s=(end_ns - start_ns) / 1e9,
        bucket_bytes=tuple(bucket.bytes for bucket in buckets),
        ready_s=tuple((bucket.ready_ns - start_ns) / 1e9 for bucket in buckets),
    )


def _windows(told: RankArgument, text: Text) -> Windows:
    job = told.job
    windows = Windows(text.content, job.model.context)
    samples = told.world_size * job.data.batch_size * job.train.accumulate
    check_enough(windows, text, samples, job.model.context)
    return windows


def _paced(told: RankArgument, model: ByteGpt) -> AbstractContextManager[Any]:
    pace = told.job.pace
    if pace is None:
        return nullcontext()
    return Pace(model, model.layers, pace.forward_ms / 1e3, pace.backward_ms / 1e3)


@contextmanager
def _wrapped(told: RankArgument, model: ByteGpt) -> Iterator[DistributedDataParallel]:
    spec = told.job.ddp
    ddp = DistributedDataParallel(
        model,
        algorithm=spec.algorithm,
        ring_order=spec.ring_order,
        ring_seed=spec.ring_seed,
        segments=spec.segments,
        bucket_cap_mb=spec.bucket_cap_mb,
        overlap=spec.overlap,
        per_parameter=spec.per_parameter,
        fabric=Fabric(tuple(told.node_of)),
        timeout_s=spec.timeout_s,
    )
    try:
        yield ddp
    except DdpError:
        raise  # peers know already
    except Exception as exc:
        try:  # tells the peers; what comes back is the first cause, which may be another rank's
            ddp.abort(told_in_words(exc))
        except ReductionFailed as first_cause:
            raise first_cause from exc
    finally:
        ddp.close()


def _trainer(
    told: RankArgument, ddp: DistributedDataParallel, windows: Windows, delay: Delay
) -> Trainer:
    job = told.job
    optimizer = build_optimizer(job.train, ddp.module)
    batches = Batches(windows, job.data.batch_size, told.rank, told.world_size, job.train.seed)
    delay.into_optimizer(optimizer)
    return Trainer(
        ddp=ddp,
        optimizer=optimizer,
        batches=delay.into_batches(batches),
        spec=job.train,
        batch_size=job.data.batch_size,
        nic=NicCounters(told.interface) if told.local_rank == 0 else None,
    )


def _header(
    told: RankArgument,
    ddp: DistributedDataParallel,
    text: Text,
    windows: Windows,
    calibration: Calibration,
) -> dict[str, Any]:
    parameters = [parameter for parameter in ddp.parameters() if parameter.requires_grad]
    return {
        "run_id": told.run_id,
        "rank": told.rank,
        "local_rank": told.local_rank,
        "node": told.node,
        "node_name": told.node_name,
        "world_size": told.world_size,
        "nnodes": told.nnodes,
        "nproc_per_node": told.nproc_per_node,
        "pid": os.getpid(),
        "interface": told.interface,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "data": {
            "source": text.source,
            "bytes": len(text.content),
            "windows": len(windows),
            "sha256": text.sha256,
        },
        "model_parameters": sum(parameter.numel() for parameter in parameters),
        "gradient_bytes": sum(parameter.nbytes for parameter in parameters),
        "initial_params_sha256": ddp.verify_parameters(),
        "plan": ddp.plan.to_json(),
        "plan_sha256": ddp.plan.sha256,
        "calibration": asdict(calibration),
    }


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
