"""What one rank does when several jobs take turns: `main`, called by the agent in a fresh process.

All jobs are set up before the first turn and stay so; only the one whose turn it is computes or
sends. What a job does in its turn is `worker`'s.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from cluster.yamlfile import StrictModel
from jobs.argument import RankArgument
from jobs.events import Events
from jobs.ranklinks import with_links
from jobs.rankrun import RankRun
from jobs.rendezvous import rendezvous
from jobs.rounds.order import baseline_blocks, turn_order
from jobs.spec import JobSpec
from jobs.text import Text, load_data
from jobs.worker import data_windows, failure_told, ready_to_train
from jobs.wrapping import failing_together


class TurnJob(StrictModel):
    """One of the jobs that take turns."""

    run_dir: str | None
    """Its run folder, where this rank writes its records; None: it sends them to its launcher."""
    run_id: str
    """The run's name."""
    job: JobSpec
    """The job, resolved."""


class TurnsArgument(StrictModel):
    """Everything a rank needs to know to do several jobs in turn."""

    rank: RankArgument
    """Who and where this rank is, as for a run of the first job alone."""
    jobs: list[TurnJob]
    """The jobs, in the order asked."""
    rounds: int
    """How often each job has a turn."""
    turn_steps: int
    """Counted steps of a turn."""


def main(argument: dict[str, Any]) -> None:
    """Runs one rank. A failure is told in one message, and its exit status is 1."""
    events = Events.from_environment()
    with failure_told(events):
        run_rank(TurnsArgument.model_validate_json(json.dumps(argument)), events)


def run_rank(told: TurnsArgument, events: Events) -> None:
    """The whole life of a rank. Raises JobError or DdpError where a person can do something."""
    torch.set_num_threads(told.rank.threads)
    texts: dict[str, Text] = {}
    with rendezvous(told.rank) as store, ExitStack() as stack:
        told = told.model_copy(update={"rank": with_links(told.rank)})
        jobs = [
            TurnTaker(stack.enter_context(_ready(told, number, texts, store, events)))
            for number in range(len(told.jobs))
        ]
        take_turns(jobs, told.rounds, told.turn_steps)


@contextmanager
def _ready(
    told: TurnsArgument, number: int, texts: dict[str, Text], store: Store, events: Events
) -> Iterator[RankRun]:
    turn = told.jobs[number]
    own = told.rank.model_copy(
        update={"job": turn.job, "run_dir": turn.run_dir, "run_id": turn.run_id}
    )
    key = turn.job.data.model_dump_json()
    if key not in texts:
        texts[key] = load_data(turn.job.data)
    text = texts[key]
    # what ranks tell one another about this job is not mixed up with another's
    job_store = PrefixStore(f"job {number}", store)
    with ready_to_train(own, text, data_windows(own, text), job_store, events.of(number)) as run:
        yield run


def take_turns(jobs: Sequence["TurnTaker"], rounds: int, turn_steps: int) -> None:
    """All jobs from their first step to their end, in rounds."""
    blocks = [baseline_blocks(job.baseline_steps, rounds) for job in jobs]
    for job, (first, *_) in zip(jobs, blocks, strict=True):
        with job.turn() as rank_run:
            rank_run.begin(first)
    for number in range(rounds):
        for place in turn_order(number, len(jobs)):
            with jobs[place].turn() as rank_run:
                rank_run.settle(number + 1, rounds)
                rank_run.train(range(number * turn_steps, (number + 1) * turn_steps))
                rank_run.baseline(1 + number, blocks[place][1 + number])
    for job in jobs:
        with job.turn() as rank_run:
            rank_run.finish()


class TurnTaker:
    """A job that is set up, and goes on in each turn as if no other had been there meanwhile."""

    def __init__(self, rank_run: RankRun) -> None:
        self._rank_run = rank_run
        self.baseline_steps = rank_run.told.job.baseline_steps

    @contextmanager
    def turn(self) -> Iterator[RankRun]:
        """The job's own peers hear of what goes wrong in its turn: they wait inside this job."""
        self._rank_run.resume()
        with failing_together(self._rank_run.trainer.ddp):
            dist.barrier()  # nobody sends for this job before all counters are read
            yield self._rank_run
            dist.barrier()  # nobody sends for another job while some still do for this one
