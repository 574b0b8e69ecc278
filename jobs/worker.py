"""What one rank does from its start to its end: `main`, called by the agent in a fresh process.

Owns how a rank gets ready, and how it fails. What it does then is `rankrun`; what is put around
its model is `wrapping`. A rank that torchrun starts (-m jobs.worker) begins in `torchrun.command`.
"""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ddp.errors import DdpError, ReductionFailed
from jobs.agree import agree_on_data, agree_on_device, agree_on_hook, agree_on_model
from jobs.argument import RankArgument
from jobs.clocks import RankClock
from jobs.data import Windows
from jobs.errors import JobError, ModelError
from jobs.events import Events
from jobs.header import OwnFiles, rank_header
from jobs.inject import Delay, check_place
from jobs.models import build_model
from jobs.owncode import algorithm_file
from jobs.ranklinks import with_links
from jobs.rankrun import RankRun
from jobs.records import RecordWriter, file_writer
from jobs.rendezvous import rendezvous
from jobs.text import Text, check_enough, load_data
from jobs.wrapping import make_trainer, paced, told_in_words, wrapped


def main(argument: dict[str, Any]) -> None:
    """Runs one rank. A failure is told in one message, and its exit status is 1."""
    events = Events.from_environment()
    with failure_told(events):
        run_rank(RankArgument.model_validate_json(json.dumps(argument)), events)


@contextmanager
def failure_told(events: Events) -> Iterator[None]:
    """A failure inside ends the process with status 1, told in one message."""
    try:
        yield
    except Exception as exc:
        origin = _origin(exc)
        if not isinstance(origin, JobError | DdpError):
            traceback.print_exception(origin)
        sys.stderr.write(f"{told_in_words(exc)}\n")
        events.failed(told_in_words(exc))
        raise SystemExit(1) from None


def _origin(error: BaseException) -> BaseException:
    """What made this rank stop: another error, where ours only passes it on."""
    while isinstance(error, ReductionFailed | ModelError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def run_rank(told: RankArgument, events: Events) -> None:
    """The whole life of a rank. Raises JobError or DdpError where a person can do something."""
    torch.set_num_threads(told.threads)
    text = load_data(told.job.data)
    windows = data_windows(told, text)
    with rendezvous(told) as store:
        train_job(with_links(told), text, windows, store, events)


def data_windows(told: RankArgument, text: Text) -> Windows:
    """The samples of the text. Raises DataError where there are too few for all ranks."""
    job = told.job
    windows = Windows(text.content, job.model.context)
    samples = told.world_size * job.data.batch_size * job.train.accumulate
    check_enough(text, samples, job.model.context)
    return windows


def train_job(
    told: RankArgument, text: Text, windows: Windows, store: Store, events: Events
) -> None:
    """One job among ranks that have found one another; several may follow one another."""
    with ready_to_train(told, text, windows, store, events) as rank_run:
        rank_run.run()


@contextmanager
def _writer(told: RankArgument, events: Events) -> Iterator[RecordWriter]:
    """Into the run folder where this rank sees it, else to its launcher."""
    if told.run_dir is None:
        yield RecordWriter(lambda line: events.record(line.decode()))
        return
    with file_writer(Path(told.run_dir), told.rank) as writer:
        yield writer


@contextmanager
def ready_to_train(
    told: RankArgument, text: Text, windows: Windows, store: Store, events: Events
) -> Iterator[RankRun]:
    """A job that is set up on every rank; several may be at once, and then take turns."""
    job = told.job
    with _writer(told, events) as writer:
        agree_on_data(told, store, text.sha256)
        model = agree_on_model(told, store, lambda: build_model(job.model, job.train.seed))
        hook = agree_on_hook(told, store)
        device = agree_on_device(told, store)
        device.take(model.module)
        delay = Delay(job.inject, told.rank)
        delay.into_model(model.module)  # before pacing, so that it comes on top of the floors
        with paced(told, model), wrapped(told, model.module, hook) as ddp:
            check_place(job.inject, told.world_size, len(ddp.plan.buckets) if ddp.plan else None)
            # from here on each rank draws its own numbers; the parameters are the same already
            torch.manual_seed(job.train.seed + told.rank)
            calibration = ddp.calibrate()
            ddp.communication()  # what came before the first step belongs to none
            trainer = make_trainer(told, ddp, model, windows, delay, device)
            files = OwnFiles(model.file, algorithm_file(job.ddp), hook.file if hook else None)
            clock = RankClock.compare(told.rank, told.world_size, job.ddp.timeout_s)
            facts = rank_header(told, ddp, files, text, windows, calibration, device)
            writer.header({**facts, "clock": clock.measure().to_json()})
            dist.barrier()  # nobody sends gradients before all NIC counters are read
            events.phase("start", 1, 1)
            with delay.into_buckets(ddp):
                yield RankRun(told, events, writer, trainer, calibration, clock)


if __name__ == "__main__":
    from jobs.torchrun.command import main as started_by_others

    started_by_others()
