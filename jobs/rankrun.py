"""A job on one rank, in parts that can be done one after another or in turn with other jobs.

Owns what a run does in which order, and what each part writes and tells. How a rank gets ready is
`worker`; what a step does is `train`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ddp.calibrate import Calibration
from jobs.argument import RankArgument
from jobs.clocks import RankClock
from jobs.derive import reductions
from jobs.events import Events, PhaseName
from jobs.header import plan_keys
from jobs.predict import (
    Compute,
    ComputeStep,
    predict,
    prediction_document,
    priced_fabric,
    slowest_rank,
    why_unpredicted,
    write_prediction,
)
from jobs.randomness import RandomState
from jobs.records import RecordWriter, StepRecord
from jobs.train import MeasuredStep, Trainer, baseline_block


@dataclass
class RankRun:
    """A rank that is ready to train: warm-up, baseline, prediction, training, baseline, end."""

    told: RankArgument
    events: Events
    writer: RecordWriter
    trainer: Trainer
    calibration: Calibration | None
    clock: RankClock | None = None

    _sent: list[StepRecord] = field(default_factory=list)
    _baseline_done: int = 0
    _random: RandomState = field(default_factory=RandomState.take)

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
        measured = self.baseline(0, baseline_steps)
        self._tell_late_plan()
        self._predict(measured)

    def train(self, numbers: Iterable[int]) -> None:
        """The measured steps of these numbers."""
        for number in numbers:
            self.writer.step(self._step("train", number, self.told.job.train.steps).record)

    def resume(self) -> None:
        """Another job had the ranks meanwhile: what the NICs carried for it is none of ours."""
        self.trainer.leave_out_nic_bytes()

    def settle(self, done: int, total: int) -> None:
        """A step that trains but is not counted, as after another job had the ranks."""
        warmup_steps = self.told.job.train.warmup_steps
        self._step("warm_up", warmup_steps + done - 1, warmup_steps + total)

    def baseline(self, block: int, num_steps: int) -> list[MeasuredStep]:
        """Steps with nothing sent, after which all is as it was before."""

        def write(measured: MeasuredStep) -> None:
            self.writer.baseline(block, measured.record)
            self._baseline_done += 1
            self._tell("no_network", self._baseline_done, self.told.job.baseline_steps, measured)

        with self._own_random():
            return baseline_block(self.trainer, num_steps, dist.barrier, write)

    def _step(self, phase: PhaseName, number: int, total: int) -> MeasuredStep:
        with self._own_random():
            measured = self.trainer.step(number)
        self._sent.append(measured.record)
        self._tell(phase, number + 1, total, measured)
        return measured

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Draws (dropout, say) go on where this job's left off, whatever others drew meanwhile."""
        self._random.restore()
        yield
        self._random = RandomState.take()

    def _tell(self, phase: PhaseName, done: int, total: int, measured: MeasuredStep) -> None:
        self.events.phase(phase, done, total, measured.record.loss, measured.record.step_s)

    def _tell_late_plan(self) -> None:
        """A plan that was not known when the header was written; others are in it."""
        plan = self.trainer.ddp.plan
        if plan is not None and self.told.job.ddp.wrapper == "torch":
            self.writer.plan(plan_keys(plan))

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
        told, spec, costs = self.told, self.told.job.ddp, self.calibration
        plan = self.trainer.ddp.plan
        fabric = priced_fabric(told.node_of, told.links, costs) if costs else None
        prediction: dict[str, Any] | str
        if plan is not None and fabric is not None and spec.hook is None:
            barrier = spec.sync == "barrier"
            prediction = predict(
                plan,
                fabric,
                compute,
                overlap=spec.overlap,
                barrier=barrier,
                costs=costs.algorithms if costs else None,
            )
        else:
            prediction = why_unpredicted(spec, plan, on_gpu=self.trainer.device is not None)
        document = prediction_document(prediction, compute, told.links, costs)
        if told.run_dir is None:
            self.events.prediction(document)
        else:
            write_prediction(Path(told.run_dir), document)

    def finish(self) -> None:
        """What the rank ended with; all ranks end together."""
        nic = self.trainer.nic
        dist.barrier()  # what this node's ranks sent is with their peers: the NIC has counted it
        sent, received = nic.total() if nic else (None, None)
        params_sha256 = self.trainer.ddp.verify_parameters()
        end = {
            "params_sha256": params_sha256,
            "steps": self.told.job.train.steps,
            "data_orders": list(self.trainer.batches.orders),
            "intra_node_bytes": _total([record.intra_node_bytes for record in self._sent]),
            "inter_node_bytes": _total([record.inter_node_bytes for record in self._sent]),
            "nic_tx_bytes": sent,
            "nic_rx_bytes": received,
            "clock": self.clock.measure().to_json() if self.clock else None,
        }
        self.writer.end(end)
        dist.barrier()  # rank 0 holds the store: nobody may still need it when it leaves
        self.events.phase("finish", 1, 1)
        self.events.finished(params_sha256, self.told.job.train.steps)


def compute_step(measured: MeasuredStep) -> ComputeStep:
    """What the cost model needs of a step in which nothing was sent."""
    start_ns, end_ns = measured.backward
    in_turn = reductions(measured.record.buckets or ())
    last = max((turn for (turn, _), _ in in_turn), default=0)
    buckets = [bucket for (turn, _), bucket in in_turn if turn == last]
    return ComputeStep(
        step_s=measured.record.step_s,
        backward_s=(end_ns - start_ns) / 1e9,
        bucket_bytes=tuple(bucket.bytes for bucket in buckets),
        ready_s=tuple((bucket.ready_ns - start_ns) / 1e9 for bucket in buckets),
        num_reductions=last + 1,
    )


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
