"""Follows a job's events until it has ended, and decides why.

Owns the ranking of causes: an exit status or signal that an agent saw outranks what the ranks
told one another, which outranks what followed from it. Starts and kills nothing; time is passed in.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.errors import JobError, LaunchError, RunFailed, RunStopped
from jobs.progress import PhaseProgress, Progress

START_TIMEOUT_S = 90.0
STALL_GRACE_S = 15.0
STOPPED_GRACE_S = 5.0  # its peers see it first, where they can
SETTLE_S = 1.0  # how long after the first sign of failure its cause may still come in
KEPT_LOG_LINES = 5


@dataclass(frozen=True)
class _Exit:
    status: int | None
    signal: str | None


@dataclass
class Watch:
    """One set of ranks: `node_of[rank]`, node names by index, how long they wait for a peer.

    `job_names` are those of the jobs that take turns in it; () where there is one.
    """

    node_of: Sequence[int]
    node_names: Sequence[str]
    timeout_s: float
    started_s: float
    job_names: Sequence[str] = ()
    lost_fix: str = "make cluster-status"
    """What a person does about a node that is gone."""
    progress: Progress = field(init=False)
    ready: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _stop: RunStopped | None = None
    _stalled: JobError | None = None
    _suspect_s: float | None = None
    _exits: dict[int, _Exit] = field(default_factory=dict)
    _failed: dict[int, str] = field(default_factory=dict)
    _stopped: dict[int | str, float] = field(default_factory=dict)
    """Since when a rank (its number), or the agent of a node (the node's name), is stopped."""
    _finished_jobs: dict[int, set[int]] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)
    _closed: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _agent_errors: dict[int, str] = field(default_factory=dict)
    _logs: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.progress = Progress(len(self.node_of), self.started_s, self.job_names)

    def take(self, node: int, event: Mapping[str, Any], now_s: float) -> PhaseProgress | None:
        """One event of a node's agent. Returns a phase's progress when this event made some."""
        kind = event["event"]
        if kind == "message":
            return self._message(int(event["rank"]), event["data"], now_s)
        if kind == "ready":
            self.ready[node] = event
        elif kind == "log":
            lines = self._logs.setdefault(int(event["rank"]), [])
            lines[:] = [*lines, str(event["line"])][-KEPT_LOG_LINES:]
        elif kind == "stopped":
            self._stopped.setdefault(event.get("rank", self.node_names[node]), now_s)
        elif kind == "continued":
            self._stopped.pop(event.get("rank", self.node_names[node]), None)
        elif kind == "exit":
            self._exit(int(event["rank"]), _Exit(event["status"], event["signal"]), now_s)
        elif kind == "done":
            self._done.add(node)
        elif kind == "error":
            self._agent_errors.setdefault(node, str(event["message"]))
            self._suspect(now_s)
        elif kind == "closed":
            self._closed[node] = event
            if node not in self._done:
                self._suspect(now_s)
        elif kind == "stop":
            who = "you" if event["signal"] == "SIGINT" else str(event["signal"])
            self._stop = self._stop or RunStopped(f"stopped by {who}")
        return None

    def slept(self, seconds: float) -> None:
        """Nobody watched for so long: this time is not held against the ranks."""
        self.started_s += seconds
        self.progress.last_s += seconds
        self._stopped = {who: since_s + seconds for who, since_s in self._stopped.items()}

    def wait_s(self, now_s: float) -> float:
        """How long until something must be decided even if no event comes."""
        limits = [self._limit_s()]
        if self._suspect_s is not None:
            limits.append(self._suspect_s + SETTLE_S)
        return max(0.0, min(limits) - now_s)

    def ended(self, now_s: float) -> bool:
        """Whether the job is over: done, stopped, failed with its cause settled, or stalled."""
        if self._stop:
            return True
        nodes = set(self.node_of)
        if nodes <= self._done | set(self._closed):
            return True
        if self._suspect_s is not None:
            return now_s >= self._suspect_s + SETTLE_S
        if now_s >= self._limit_s():
            self._stalled = self._stall_error()
        return self._stalled is not None

    def lost_nodes(self) -> list[int]:
        """The nodes whose agent ended before its ranks had."""
        return [node for node in self._closed if node not in self._done]

    def cause(self, lab_end: JobError | None = None) -> JobError | None:
        """Why the job did not do what was asked; None when it did.

        `lab_end` tells how the lab ended, where it did: all else followed from that.
        """
        return (
            self._stop
            or lab_end
            or self._killed_rank()
            or self._lost_node()
            or self._stopped_process()
            or self._broken_rank()
            or self._told()
            or self._stalled
            or self._unfinished()
        )

    def _message(self, rank: int, data: Mapping[str, Any], now_s: float) -> PhaseProgress | None:
        if data["kind"] == "phase":
            return self.progress.take(rank, data, now_s)
        if data["kind"] == "failed":
            self._failed.setdefault(rank, str(data["message"]))
            self._suspect(now_s)
        elif data["kind"] == "finished":
            self._finished_jobs.setdefault(rank, set()).add(int(data.get("job", 0)))
        return None

    def _exit(self, rank: int, how: _Exit, now_s: float) -> None:
        self._exits[rank] = how
        if how.signal or how.status != 0 or not self._has_finished(rank):
            self._suspect(now_s)

    def _has_finished(self, rank: int) -> bool:
        """Whether the rank has come to the end of every job."""
        return len(self._finished_jobs.get(rank, ())) == max(1, len(self.job_names))

    def _suspect(self, now_s: float) -> None:
        if self._suspect_s is None:
            self._suspect_s = now_s

    def _limit_s(self) -> float:
        limit_s = self.progress.last_s + self.timeout_s + STALL_GRACE_S
        if not self.progress.started():
            limit_s = self.started_s + START_TIMEOUT_S
        stopped = [since_s for who, since_s in self._stopped.items() if who not in self._exits]
        return min([limit_s, *(since_s + self.timeout_s + STOPPED_GRACE_S for since_s in stopped)])

    def _killed_rank(self) -> JobError | None:
        # a rank aborts itself when a peer is gone, so another signal is nearer to the cause
        for rank, how in sorted(self._exits.items(), key=lambda item: item[1].signal == "SIGABRT"):
            if how.signal:
                return RunFailed(
                    f"{self._name(rank)} was killed by {how.signal}, {self.progress.place(rank)}",
                    fix=_memory_fix(how.signal),
                )
        return None

    def _lost_node(self) -> JobError | None:
        """An agent that reported a fault, or ended by itself with its ranks."""
        for node, message in self._agent_errors.items():
            return LaunchError(f"{self.node_names[node]}: {message}", seen=self._errors(node))
        lost = self.lost_nodes()
        if not lost:
            return None
        node = lost[0]
        ranks = _listed([rank for rank, at in enumerate(self.node_of) if at == node])
        others = "".join(f"; so is {self.node_names[other]}" for other in lost[1:])
        return RunFailed(
            f"{self.node_names[node]} (ranks {ranks}) is gone: its agent "
            f"{_status_words(self._closed[node]['status'])}{others}",
            fix=self.lost_fix,
            seen=self._errors(node),
        )

    def _stopped_process(self) -> JobError | None:
        """A rank or an agent that somebody froze while the others waited for it."""
        stopped = [who for who in self._stopped if who not in self._exits]
        if not stopped or not (self._failed or self._stalled):
            return None
        who = min(stopped, key=lambda each: (isinstance(each, int), each))  # agents keep ranks
        told = next(iter(self._failed.items()), None)
        where = f", {self.progress.place(who)}" if isinstance(who, int) else ""
        name = self._name(who) if isinstance(who, int) else self._agent_name(who)
        return RunFailed(
            f"{name} was stopped by a signal (SIGSTOP){where}",
            rule=f"the other ranks wait for it for ddp.timeout_s, {self.timeout_s:g} s",
            fix="find out who stopped it (debugger, job control), and run again",
            seen=self._words_of(*told) if told else None,
        )

    def _agent_name(self, node_name: str) -> str:
        ranks = [rank for rank, at in enumerate(self.node_of) if self.node_names[at] == node_name]
        return f"the agent of {node_name} (ranks {_listed(ranks)})"

    def _broken_rank(self) -> JobError | None:
        """A rank that ended by itself and told nobody why."""
        for rank, how in self._exits.items():
            if how.status and rank not in self._failed:
                return RunFailed(
                    f"{self._name(rank)} ended with exit status {how.status}, "
                    f"{self.progress.place(rank)}",
                    seen=self._log(rank),
                )
        return None

    def _told(self) -> JobError | None:
        """What a rank told: the same first cause on every rank, as far as they could agree."""
        for rank, message in self._failed.items():
            return RunFailed(self._words_of(rank, message))
        return None

    def _words_of(self, rank: int, message: str) -> str:
        """A cause that ranks agreed on begins with the rank that found it: named once."""
        found = re.match(r"rank (\d+): ", message)
        if found and int(found[1]) < len(self.node_of):
            rank, message = int(found[1]), message[found.end() :]
        return f"{self._name(rank)}: {message}"

    def _unfinished(self) -> JobError | None:
        in_order = [*self._exits, *range(len(self.node_of))]  # who left first is the cause
        rank = next((each for each in in_order if not self._has_finished(each)), None)
        if rank is None:
            return None
        how = "ended" if rank in self._exits else "was never heard to end"
        return RunFailed(
            f"{self._name(rank)} {how} without finishing, {self.progress.place(rank)}",
            seen=self._log(rank),
        )

    def _stall_error(self) -> JobError:
        if not self.progress.started():
            silent = sorted({self.node_names[node] for node in self.node_of} - self._ready_names())
            behind = self.progress.behind()
            who = f"agent of {', '.join(silent)}" if silent else f"ranks {_listed(behind)}"
            return LaunchError(
                f"{who}: not started after {START_TIMEOUT_S:.0f} s",
                rule="every rank is ready to train by then",
                fix="look at the rank<k>.log files in runs/latest",
            )
        behind = self.progress.behind()
        return RunFailed(
            f"not heard of for {self.timeout_s + STALL_GRACE_S:.0f} s: "
            f"{', '.join(f'{self._name(r)} {self.progress.place(r)}' for r in behind)}",
            rule=f"ddp.timeout_s is {self.timeout_s:g}",
            fix="look at the rank<k>.log files in runs/latest",
        )

    def _ready_names(self) -> set[str]:
        return {self.node_names[node] for node in self.ready}

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self.node_names[self.node_of[rank]]})"

    def _log(self, rank: int) -> str | None:
        lines = self._logs.get(rank)
        return "\n".join(["its last lines:", *lines]) if lines else None

    def _errors(self, node: int) -> str | None:
        lines = self._closed.get(node, {}).get("errors")
        return "\n".join(lines[-KEPT_LOG_LINES:]) if lines else None


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)


def _status_words(status: int | None) -> str:
    if status is None:
        return "closed its output"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"


def _memory_fix(name: str) -> str | None:
    return "if nobody did it by hand, look for lack of memory: dmesg" if name == "SIGKILL" else None
