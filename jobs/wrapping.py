"""What is put around a model so that a rank can train it: its pace, the wrapper, its trainer.

Owns which key of a job goes where, and that what goes wrong on one rank stops them all.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import nn

from ddp.comm_hook import Hook
from ddp.errors import DdpError, ReductionFailed
from ddp.fabric import Fabric
from ddp.parallel import DistributedDataParallel
from jobs.argument import RankArgument
from jobs.data import Batches, Windows
from jobs.devices import RankDevice
from jobs.errors import JobError
from jobs.inject import Delay
from jobs.modelfile import blame
from jobs.models import Model
from jobs.optimizers import build_optimizer
from jobs.owncode import FoundHook
from jobs.pace import Pace
from jobs.phases import NicCounters
from jobs.stock import HookedStock, Stock
from jobs.train import Trainer
from jobs.wrapper import Wrapper


def paced(told: RankArgument, model: Model) -> AbstractContextManager[Any]:
    """Inside, the model takes the time that the job says, where it says one."""
    floors = told.job.floors_ms
    if floors is None:
        return nullcontext()
    forward_ms, backward_ms = floors
    return Pace(model.module, model.paced_layers, forward_ms / 1e3, backward_ms / 1e3)


@contextmanager
def wrapped(told: RankArgument, module: nn.Module, found: FoundHook | None) -> Iterator[Wrapper]:
    """The module with its gradients reduced as the job says; an error inside stops all ranks."""
    ddp = _wrapper(told, module, found.hook if found else None)
    try:
        with failing_together(ddp):
            yield ddp
    finally:
        ddp.close()


def _wrapper(told: RankArgument, module: nn.Module, hook: Hook | None) -> Wrapper:
    spec, fabric = told.job.ddp, Fabric(tuple(told.node_of))
    if spec.is_stock:
        return Stock(module, spec, hook)
    if spec.wrapper == "torch":
        return HookedStock(module, spec, fabric)
    ddp = DistributedDataParallel(
        module,
        algorithm=spec.algorithm,
        ring_order=spec.ring_order,
        ring_seed=spec.ring_seed,
        segments=spec.segments,
        bucket_cap_mb=spec.bucket_cap_mb,
        overlap=spec.overlap,
        per_parameter=spec.per_parameter,
        find_unused_parameters=spec.find_unused_parameters,
        static_graph=spec.static_graph,
        lesson_deadlock=spec.lesson_deadlock,
        transport=spec.transport,
        shared_memory=spec.shared_memory and told.shared_memory,
        rebuild_buckets=False,  # a run is of one plan, which its prediction and run.json state
        fabric=fabric,
        timeout_s=spec.timeout_s,
    )
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


@contextmanager
def failing_together(ddp: Wrapper) -> Iterator[None]:
    """What goes wrong inside on this rank stops the others too, for the same first cause."""
    try:
        yield
    except DdpError:
        raise  # peers know already
    except Exception as exc:
        try:  # tells the peers; what comes back is the first cause, which may be another rank's
            ddp.abort(told_in_words(exc))
        except ReductionFailed as first_cause:
            raise first_cause from exc


def told_in_words(error: Exception) -> str:
    """One message for people: ours as they are, others with their kind."""
    if isinstance(error, JobError | DdpError):
        return str(error)
    own = blame(error)
    if own is not None:
        return str(own)
    return f"{type(error).__name__}: {error}"


def make_trainer(
    told: RankArgument,
    ddp: Wrapper,
    model: Model,
    windows: Windows,
    delay: Delay,
    device: RankDevice,
) -> Trainer:
    """Trains the wrapped model on this rank's share of the windows."""
    job = told.job
    optimizer = build_optimizer(job.train, ddp.module)
    batches = Batches(
        windows,
        job.data.batch_size,
        told.rank,
        told.world_size,
        job.train.seed,
        set_epoch=job.data.set_epoch,
    )
    delay.into_optimizer(optimizer)
    return Trainer(
        ddp=ddp,
        optimizer=optimizer,
        batches=delay.into_batches(batches),
        spec=job.train,
        batch_size=job.data.batch_size,
        loss=model.loss,
        nic=NicCounters(told.interface) if told.local_rank == 0 else None,
        reduces_each=not job.ddp.no_sync,
        meet=dist.barrier if job.ddp.sync == "barrier" else None,
        device=device.gpu,
        times=device.times(),
    )
