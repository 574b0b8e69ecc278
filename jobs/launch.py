"""Runs jobs on a lab: one agent per node, its ranks watched, everything kept, everything ended.

Owns the order of a run on the launcher's side, for one job or for several that share one set of
ranks. Why it ended is decided by `watch`; what it came to is said by `conclude`.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol

from cluster.errors import ClusterError
from cluster.linklog import LinkChange
from cluster.site import Attached, Site
from cluster.units import format_rate
from jobs.agents import Agents
from jobs.conclude import RunResult, conclude
from jobs.delivery import Delivery
from jobs.errors import JobError, LaunchError, RecordsError
from jobs.handover import hand_over, require_seen
from jobs.progress import PhaseProgress
from jobs.rankplan import TRAINING, Program, RankPlan, choose_threads, measured_links, preloads
from jobs.records import RankRecords
from jobs.runfolder import RunFolder, create_run, run_name
from jobs.runinfo import describe_run, shared_by_ranks, told_by_ranks
from jobs.spec import JobSpec, node_of
from jobs.stopping import StopRequest, stop_signals
from jobs.summary import read_ranks
from jobs.underlay import Underlay, lost_fix, underlay_of
from jobs.watch import Watch

TICK_S = 0.2
SLEPT_S = 2.0  # a wait of at most TICK_S that took longer: this process was stopped meanwhile


class Observer(Protocol):
    """Whoever shows a run while it goes."""

    def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
        """The run folder is made; nothing has been started. Once for each job."""

    def progress(self, phase: PhaseProgress, ranks: list[RankRecords]) -> None:
        """A unit of a phase is done on all ranks. `ranks` holds what they wrote so far, and is
        filled at the end of the phase `start` only."""

    def tick(self, now_s: float) -> None:
        """Some time has passed."""

    def links_changed(self, change: LinkChange) -> None:
        """Links of the lab were changed, or (`settled_ns` is None) are about to be."""

    def end(self) -> None:
        """No rank runs any more."""


@dataclass(frozen=True)
class Part:
    """One of the jobs that a set of ranks does, and the run folder that it fills."""

    plan: RankPlan
    folder: RunFolder
    run: dict[str, Any]
    run_dir: str | None
    """The folder as ranks see it; None where they do not."""


@dataclass(frozen=True)
class Task:
    """What one set of ranks is asked to do with its jobs.

    `what` is told to those who want the lab meanwhile; `labels` go into the run folders' names and
    `about` into every run.json. `argument` makes, of the argument of a rank that does the first
    job alone, the argument that `program` takes.
    """

    program: Program
    what: str
    labels: Sequence[str]
    about: Mapping[str, Any]
    argument: Callable[[Mapping[str, Any], Sequence[Part]], Mapping[str, Any]]


def launch(
    job: JobSpec, site: Site, runs: Path, observer: Observer, program: Program = TRAINING
) -> RunResult:
    """Runs the job to its end, whatever end that is; a failure is in the result, not raised.

    Raises JobError or ClusterError when there is nothing to keep: the job does not fit the site, or
    no run folder can be made.
    """
    alone = Task(program, f"run of {job.name}", [job.name], {}, lambda argument, _: argument)
    (result,) = run_ranks([plan_ranks(job, site)], alone, site, runs, observer)
    return result


def run_ranks(
    plans: Sequence[RankPlan], task: Task, site: Site, runs: Path, observer: Observer
) -> list[RunResult]:
    """Runs several jobs with one set of ranks to their end, as `launch` runs one.

    All `plans` put the same rank on the same node. One failure is the end, and the error, of all.
    """
    require_seen(site.nodes, runs, [plan.job for plan in plans])
    with (
        stop_signals() as stop,
        underlay_of(site, task.what) as underlay,
        ExitStack() as stack,
    ):
        now = datetime.now().astimezone()
        parts = [
            stack.enter_context(_part(plan, label, task.about, site, runs, now))
            for plan, label in zip(plans, task.labels, strict=True)
        ]
        underlay.tell(f"run {parts[0].folder.run_id}" if len(parts) == 1 else task.what)
        for part in parts:
            observer.begin(part.folder, part.run)
        ranks = RankSet(parts, task, site, underlay, observer)
        try:
            error = ranks.follow(stop)
        except (ClusterError, RecordsError) as exc:
            error = underlay.end() or LaunchError(exc.message, exc.rule, exc.fix, seen=exc.seen)
        except OSError as exc:  # without a name it is our output: the terminal is gone, say
            where = exc.filename or "standard output"
            error = stop.error or LaunchError(f"{where}: {exc.strerror}")
        except BaseException as exc:  # a fault of ours, or nobody reads our output any more
            ours = LaunchError(f"the launcher ended: {type(exc).__name__}: {exc}")
            for part in parts:
                conclude(part.folder, part.run, ours)
            raise
        finally:
            with suppress(OSError):
                observer.end()
        return [conclude(part.folder, part.run, error) for part in parts]


@contextmanager
def _part(
    plan: RankPlan, label: str, about: Mapping[str, Any], site: Site, runs: Path, now: datetime
) -> Iterator[Part]:
    rate = format_rate(site.spec.links.inter_node.rate_bits_per_s)
    name = run_name(label, f"{site.spec.nodes}x{site.spec.ranks_per_node}", rate, now)

    def describe(run_id: str) -> Mapping[str, Any]:
        return {**describe_run(run_id, site, plan, now), **about}

    with create_run(runs, name, describe) as folder:
        hand_over(folder, site.nodes)
        run_dir = str(folder.path.resolve()) if site.nodes.shares_files else None
        yield Part(plan, folder, folder.read("run.json") or {}, run_dir)


def plan_ranks(job: JobSpec, site: Site) -> RankPlan:
    """Which rank runs where. Raises JobSpecError where the job does not fit the site."""
    spec = site.spec
    places = node_of(job.placement, spec.nodes, spec.ranks_per_node)
    nodes = site.nodes.list()
    probe = site.probe.to_json() if site.probe else None
    return RankPlan(
        job=job,
        node_of=places,
        nodes=nodes,
        nproc_per_node=spec.ranks_per_node,
        threads=choose_threads(os.environ, shared_by_ranks(site), len(places)),
        links=measured_links(probe, [node.name for node in nodes], limits_of(site)),
        measure_links=isinstance(site, Attached) and probe is None and len(nodes) > 1,
        shared_memory=not spec.limits_insides,
    )


def limits_of(site: Site) -> dict[str, int | None]:
    """Bits per second that we limit each node's links to; nobody knows where they are others'."""
    if isinstance(site, Attached):
        return {}
    spec = site.spec
    return {name: spec.links_of(name).inter_node.rate_bits_per_s for name in spec.node_names}


@dataclass
class RankSet:
    """The ranks of one or more jobs while they run."""

    parts: Sequence[Part]
    task: Task
    site: Site
    underlay: Underlay
    observer: Observer

    @property
    def plan(self) -> RankPlan:
        """Where ranks run, and with how many threads: the same for every part."""
        return self.parts[0].plan

    def follow(self, stop: StopRequest) -> JobError | None:
        """Starts everything, follows it to its end, ends everything. Returns the first cause."""
        plan = self.plan
        watch = Watch(
            node_of=plan.node_of,
            node_names=[node.name for node in plan.nodes],
            timeout_s=max(part.plan.job.ddp.timeout_s for part in self.parts),
            started_s=time.monotonic(),
            job_names=[part.plan.job.name for part in self.parts],
            lost_fix=lost_fix(self.site),
        )
        agents = Agents(
            self.site.nodes,
            plan.used_nodes,
            preloads(self.task.program, [part.plan.job for part in self.parts]),
            plan.threads.environment(),
            cwd=self.site.nodes.project,
        )
        with ExitStack() as stack:
            logs = [
                [stack.enter_context(_log_file(part, rank).open("wb")) for part in self.parts]
                for rank in range(len(plan.node_of))
            ]
            delivery = stack.enter_context(Delivery([part.folder for part in self.parts]))
            stack.enter_context(agents)
            stop.tell(lambda name: agents.put(0, {"event": "stop", "signal": name}))
            self._note_nodes()
            self._loop(agents, watch, logs, delivery)
            return watch.cause(self.underlay.end() if watch.lost_nodes() else None)

    def _loop(
        self,
        agents: Agents,
        watch: Watch,
        logs: Sequence[Sequence[IO[bytes]]],
        delivery: Delivery,
    ) -> None:
        waiting = {node.index for node in self.plan.used_nodes}
        while not watch.ended(now_s := time.monotonic()):
            event = agents.next_event(min(TICK_S, watch.wait_s(now_s)))
            if time.monotonic() - now_s > SLEPT_S:  # as after Ctrl-Z and fg
                watch.slept(time.monotonic() - now_s)
            for change in self.underlay.changes((part.folder, part.run) for part in self.parts):
                self.observer.links_changed(change)
            if event is None:
                self.observer.tick(time.monotonic())
                continue
            node, content = event
            if content["event"] == "log":
                for log in logs[int(content["rank"])]:
                    log.write(str(content["line"]).encode() + b"\n")
                    log.flush()
            elif content["event"] == "message":
                delivery.take(int(content["rank"]), content["data"])
            progress = watch.take(node, content, time.monotonic())
            if progress:
                self._progress(progress)
            if waiting and waiting <= set(watch.ready):
                waiting.clear()
                self._start(agents, watch)

    def _start(self, agents: Agents, watch: Watch) -> None:
        folder = self.parts[0].folder
        orders = self.plan.start_orders(
            self.task.program.target, self.parts[0].run_dir, folder.run_id, watch.ready
        )
        for node, order in orders.items():
            for rank in order["ranks"]:
                rank["argument"] = self.task.argument(rank["argument"], self.parts)
            agents.send(node, order)

    def _progress(self, progress: PhaseProgress) -> None:
        ranks: list[RankRecords] = []
        if progress.phase == "start":
            part = self.parts[progress.job]
            ranks = read_ranks(part.folder.path, len(part.plan.node_of))
            told = told_by_ranks(part.run, [rank.header for rank in ranks], self.site.spec)
            part.run.update(told)
            part.folder.write("run.json", part.run)
        self.observer.progress(progress, ranks)

    def _note_nodes(self) -> None:
        """While the agents import torch: what each node says about itself, and what limits it."""
        self.underlay.require_limited()
        facts = {node.name: self.site.nodes.facts(node).to_json() for node in self.plan.used_nodes}
        for part in self.parts:
            part.run["nodes"] = facts
            part.folder.write("run.json", part.run)


def _log_file(part: Part, rank: int) -> Path:
    return part.folder.path / f"rank{rank}.log"
