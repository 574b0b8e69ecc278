"""The ranks of a proof: processes of this machine that meet in a file, join by gloo, and answer.

Owns their life: whoever asks no longer, or ends in whatever way, leaves none of them. What is
asked is said elsewhere.
"""

import ctypes
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from jobs.stopping import held_back

NUM_RANKS = 4
LIMIT_S = 100.0
"""For all answers together."""
TIMEOUT_S = 10.0
"""The longest wait of a wrapper for a peer."""
MEETING = timedelta(seconds=60)
START_METHOD = "spawn"
PR_SET_PDEATHSIG = 1

Question = Callable[[int, int], Any]
"""Asked on each rank with its number and how many there are; the answer is what JSON can hold."""


@dataclass(frozen=True)
class Answers:
    """What every rank answered to one question, by rank; or why there is no answer."""

    by_rank: tuple[Any, ...] = ()
    problem: str | None = None


@contextmanager
def ask(questions: Sequence[Question], num_ranks: int = NUM_RANKS) -> Iterator[Iterator[Answers]]:
    """Starts ranks at once; gives the answers to each question in turn, when all have answered.

    Questions are functions of a module (or partials of one): they travel to other processes.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ddplab-proof-") as name,
        _processes(Path(name), questions, num_ranks) as processes,
    ):
        deadline_s = time.monotonic() + LIMIT_S
        numbers = range(len(questions))
        yield (_answers(Path(name), number, processes, deadline_s) for number in numbers)


@contextmanager
def _processes(
    folder: Path, questions: Sequence[Question], num_ranks: int
) -> Iterator[Sequence[BaseProcess]]:
    processes: Sequence[BaseProcess] = ()
    resource_tracker.ensure_running()  # to begin with: when it starts it unblocks signals
    try:
        with held_back():  # until all processes are known; these inherit it, and leave SIGINT to us
            processes = start_processes(  # type: ignore[no-untyped-call]
                _rank,
                (folder, questions, num_ranks, os.getpid()),
                num_ranks,
                join=False,
                daemon=True,
                start_method=START_METHOD,
            ).processes
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _answers(
    folder: Path, number: int, processes: Sequence[BaseProcess], deadline_s: float
) -> Answers:
    files = [_answer_file(folder, number, rank) for rank in range(len(processes))]
    while True:
        ended = [not process.is_alive() for process in processes]  # before looking for its answer
        silent = [rank for rank, file in enumerate(files) if not file.exists()]
        if not silent:
            break
        for rank in silent:
            if ended[rank]:
                return Answers(problem=f"rank {rank} {_end(folder, rank, processes[rank])}")
        if time.monotonic() > deadline_s:
            which = ", ".join(map(str, silent))
            return Answers(problem=f"no answer of rank {which} within {LIMIT_S:.0f} s")
        time.sleep(0.02)
    answers = [json.loads(file.read_text("utf-8")) for file in files]
    for rank, answer in enumerate(answers):
        if "error" in answer:
            return Answers(problem=f"rank {rank}: {answer['error']}")
    return Answers(tuple(answer["value"] for answer in answers))


def _end(folder: Path, rank: int, process: BaseProcess) -> str:
    code = process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "ended without an answer"
    log = folder / f"rank{rank}.log"
    words = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
    return f"{how}; its last words: {words[-1][:300]}" if words else how


def _rank(
    rank: int, folder: Path, questions: Sequence[Question], num_ranks: int, asker: int
) -> None:
    _end_with(asker)
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)  # libraries talk
    os.dup2(log, 2)
    torch.set_num_threads(1)  # sums inside a layer depend on it
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(folder / "meet"), num_ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=MEETING)
    for number, question in enumerate(questions):
        answer = json.dumps(_attempt(question, rank, num_ranks))
        file = _answer_file(folder, number, rank)
        file.with_suffix(".part").write_text(answer, "utf-8")
        file.with_suffix(".part").rename(file)
        dist.barrier()  # where one failed, the others may need a while to see it
    dist.destroy_process_group()


def _attempt(question: Question, rank: int, num_ranks: int) -> dict[str, Any]:
    try:
        return {"value": question(rank, num_ranks)}
    except Exception as exc:  # whatever it is, it is what this rank has to say
        return {"error": f"{type(exc).__name__}: {exc}"}


def _answer_file(folder: Path, number: int, rank: int) -> Path:
    return folder / f"answer{number}-{rank}.json"


def _end_with(asker: int) -> None:
    """Killed when whoever asks ends; its handlers for stop signals are not ours."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != asker:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))
