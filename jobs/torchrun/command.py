"""`torchrun ... -m jobs.worker --job hier --out runs/x`: a rank that somebody else started.

Owns the command line, the order in which such a rank gets ready, and what rank 0 prints. How ranks
find one another is `meeting`, what they must agree on `facts`, where they write `folder`.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import Store

from ddp.failure import leave_together
from jobs.argument import RankArgument
from jobs.data import Windows
from jobs.errors import RunFailed
from jobs.events import Events
from jobs.ranklinks import with_links
from jobs.rendezvous import joined
from jobs.runfolder import locked
from jobs.spec import JobSpec, load_job
from jobs.text import Text, check_enough, load_data
from jobs.torchrun.completing import complete
from jobs.torchrun.describing import describe
from jobs.torchrun.environment import Seat, seat
from jobs.torchrun.facts import Layout, layout, own_facts, placed
from jobs.torchrun.folder import (
    RankFolder,
    agree_on_folder,
    closed,
    forget_mark,
    part_name,
    wait_until_closed,
    write_part,
)
from jobs.torchrun.meeting import meet, open_store
from jobs.torchrun.nic import FabricNic, fabric_nic
from jobs.torchrun.telling import Progress, failure_of, header_text, parts_text
from jobs.worker import failure_told, train_job
from jobs.wrapping import told_in_words

MEET_S = 60.0
GRACE_S = 2
"""From a stop signal to the end: a peer's failure, which is often what the signal comes from, is
told by then."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    job: str
    out: Path
    sets: tuple[str, ...]
    fabric: str | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one rank. A failure is told in one message, and its exit status is 1."""
    asked = _parse(arguments)
    with failure_told(Events.from_environment()), _stopped_in_order():
        _run(asked, os.environ)


def _parse(arguments: Sequence[str] | None) -> Asked:
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m jobs.worker",
        description="Train a job on ranks that torchrun, srun or mpirun starts.",
    )
    parser.add_argument("--job", required=True, help="a job of the catalog, or a file")
    parser.add_argument("--out", required=True, type=Path, help="the run's folder, a new one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="put over the job's own"
    )
    parser.add_argument(
        "--fabric", help="the NIC that gradients cross: eth1, or 10.0.0.0/24 where names differ"
    )
    found = parser.parse_args(arguments)
    return Asked(found.job, found.out, tuple(found.set), found.fabric)


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """Inside, SIGTERM and Ctrl-C raise RunFailed, a moment later."""

    def stop(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name

        def end(_number: int, _frame: FrameType | None) -> NoReturn:
            raise RunFailed(f"stopped by {name}")

        signal.signal(signal.SIGALRM, end)
        signal.alarm(GRACE_S)

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        signal.alarm(0)
        for each, how in before.items():
            signal.signal(each, how)


@dataclass(frozen=True)
class _Brought:
    """What a rank must have before it meets the others; `failure`: why it has not."""

    job: JobSpec | None = None
    nic: FabricNic | None = None
    text: Text | None = None
    windows: Windows | None = None
    failure: Exception | None = None


def _bring(asked: Asked, own: Seat, environment: Mapping[str, str]) -> _Brought:
    job = nic = None
    try:
        job = load_job(asked.job, asked.sets)
        nic = fabric_nic(asked.fabric, environment, own.master_addr)
        text = load_data(job.data)
        windows = Windows(text.content, job.model.context)
        samples = own.world_size * job.data.batch_size * job.train.accumulate
        check_enough(text, samples, job.model.context)
    except Exception as exc:
        return _Brought(job, nic, failure=exc)
    return _Brought(job, nic, text, windows)


def _run(asked: Asked, environment: Mapping[str, str]) -> None:
    own = seat(environment)
    brought = _bring(asked, own, environment)
    timeout_s = brought.job.ddp.timeout_s if brought.job else MEET_S
    store = open_store(own, timeout_s)
    problem = told_in_words(brought.failure) if brought.failure else None
    facts = own_facts(own, brought.nic, brought.job, environment, problem)
    ranks = meet(store, own, facts, timeout_s)
    with _staying(store, own):
        if brought.failure:
            raise brought.failure
        places = layout(ranks)
        assert brought.job and brought.nic and brought.text and brought.windows
        job = placed(brought.job, places.node_of, places.nproc_per_node)
        folder = agree_on_folder(store, asked.out, own.rank, places, timeout_s)
        told = _argument(own, job, places, folder)
        threads_set = all(each.threads_asked is not None for each in ranks)
        run = describe(job, places, folder.session, own.source, threads_set=threads_set)
    rank_run = _RankRun(told, run, folder, places, store)
    if own.rank == 0:
        _say(header_text(run, places, own.source, brought.nic.why))
    torch.set_num_threads(told.threads)
    rank_run.train(brought.text, brought.windows)


@contextmanager
def _staying(store: Store, own: Seat) -> Iterator[None]:
    """What goes wrong inside goes wrong on all ranks; who keeps the store waits for the others."""
    try:
        yield
    except Exception:
        leave_together(store, own.rank, own.world_size)
        raise


def _argument(own: Seat, job: JobSpec, places: Layout, folder: RankFolder) -> RankArgument:
    node = places.node_of[own.rank]
    here = places.nodes[node]
    return RankArgument(
        run_dir=str(folder.folder.path),
        run_id=folder.session.run_id,
        job=job,
        rank=own.rank,
        local_rank=places.local_ranks[own.rank],
        world_size=own.world_size,
        nnodes=len(places.first),
        nproc_per_node=places.nproc_per_node,
        node=node,
        node_name=here.name,
        node_of=list(places.node_of),
        master_addr=own.master_addr,
        master_port=own.master_port,
        listen_fd=None,
        interface=here.interface,
        links=None,
        measure_links=len(places.first) > 1,
        node_names=[each.name for each in places.nodes],
        threads=places.threads,
    )


@dataclass(frozen=True)
class _RankRun:
    """One rank that has met the others, from its first file to its last."""

    told: RankArgument
    run: dict[str, Any]
    folder: RankFolder
    places: Layout
    store: Store

    @property
    def _concludes(self) -> bool:
        return self.told.rank == 0 and self.folder.shared

    def train(self, text: Text, windows: Windows) -> None:
        if not self._concludes:
            self._train(text, windows)
            self._tell_parts()
            return
        folder = self.folder.folder
        with locked(folder):
            folder.write("run.json", self.run)
            try:
                self._train(text, windows)
                wait_until_closed(self.store, self.told.world_size, self.told.job.ddp.timeout_s)
            except Exception as exc:
                complete(folder, self.run, failure_of(told_in_words(exc)))
                raise
            result = complete(folder, self.run, None)
        self._show(result)

    def _train(self, text: Text, windows: Windows) -> None:
        told, events = self.told, Events.from_environment()
        if told.rank == 0:
            events = Progress(_say)
        own = self.places.ranks_on(told.node)
        if not self.folder.shared and told.rank == own[0]:
            write_part(self.folder, told.node, own, self.run)
        with joined(told, self.store):
            if told.rank == own[0]:
                forget_mark(self.folder.folder)
            train_job(with_links(told), text, windows, self.store, events)
        closed(self.store, told.rank)

    def _tell_parts(self) -> None:
        """Where ranks share no folder: what is in this node's, and what to do with it."""
        own = self.places.ranks_on(self.told.node)
        if not self.folder.shared and self.told.rank == own[0]:
            assert (self.folder.folder.path / part_name(self.told.node)).exists()
            _say(parts_text(self.folder, self.told.node, own, self.places))

    def _show(self, result: Any) -> None:
        from jobs.cli_run import show_result  # screens are rank 0's alone

        show_result(result)
        if result.error:
            raise SystemExit(1)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
