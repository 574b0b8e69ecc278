"""Runs a job on a lab: one agent per node, its ranks watched, everything kept, everything ended.

Owns the order of a run on the launcher's side. Why a job ended is decided by `watch`; what it came
to is said by `summary`.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol

from cluster.errors import ClusterError
from cluster.lab import Lab, in_use, is_up
from cluster.state import Use
from cluster.units import format_rate
from jobs.agents import Agents
from jobs.errors import JobError, LaunchError, RecordsError, RunFailed, RunStopped
from jobs.figures import RunFigures, run_figures
from jobs.progress import PhaseProgress
from jobs.rankplan import TRAINING, Program, RankPlan, choose_threads, measured_links
from jobs.records import RankRecords
from jobs.runfolder import RunFolder, create_run, run_name
from jobs.runinfo import PROJECT, describe_run, num_cores
from jobs.spec import JobSpec, node_of
from jobs.stopping import StopRequest, stop_signals
from jobs.summary import read_ranks, replicas, steps_csv, summarize
from jobs.watch import Watch

TICK_S = 0.2
SLEPT_S = 2.0  # a wait of at most TICK_S that took longer: this process was stopped meanwhile


class Observer(Protocol):
    """Whoever shows a run while it goes."""

    def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
        """The run folder is made; nothing has been started."""

    def progress(self, phase: PhaseProgress, ranks: list[RankRecords]) -> None:
        """A unit of a phase is done on all ranks. `ranks` holds what they wrote so far, and is
        filled at the end of the phase `start` only."""

    def tick(self, now_s: float) -> None:
        """Some time has passed."""

    def end(self) -> None:
        """No rank runs any more."""


@dataclass(frozen=True)
class RunResult:
    """What is left of a run; `error` tells why it did not do what was asked."""

    folder: RunFolder
    run: Mapping[str, Any]
    figures: RunFigures
    summary: Mapping[str, Any]
    ranks: list[RankRecords]
    error: JobError | None


def launch(
    job: JobSpec, lab: Lab, runs: Path, observer: Observer, program: Program = TRAINING
) -> RunResult:
    """Runs the job to its end, whatever end that is; a failure is in the result, not raised.

    Raises JobError or ClusterError when there is nothing to keep: the job does not fit the lab, or
    no run folder can be made.
    """
    plan = plan_ranks(job, lab)
    now = datetime.now().astimezone()
    rate = format_rate(lab.spec.links.inter_node.rate_bits_per_s)
    name = run_name(job.name, f"{lab.spec.nodes}x{lab.spec.ranks_per_node}", rate, now)

    def describe(run_id: str) -> Mapping[str, Any]:
        return describe_run(run_id, lab, plan, now)

    with (
        stop_signals() as stop,
        in_use(lab, f"run of {job.name}") as use,
        create_run(runs, name, describe) as folder,
    ):
        use.tell(f"run {folder.run_id}")
        run = folder.read("run.json") or {}
        observer.begin(folder, run)
        job_run = JobRun(plan, program, lab, use, folder, run, observer)
        try:
            error = job_run.follow(stop)
        except (ClusterError, RecordsError) as exc:
            error = job_run.lab_end() or LaunchError(exc.message, exc.rule, exc.fix, seen=exc.seen)
        except OSError as exc:
            error = LaunchError(f"{exc.filename or folder.path}: {exc.strerror}")
        except BaseException as exc:  # a fault of ours, or nobody reads our output any more
            conclude(folder, run, LaunchError(f"the launcher ended: {type(exc).__name__}: {exc}"))
            raise
        finally:
            observer.end()
        return conclude(folder, run, error)


def plan_ranks(job: JobSpec, lab: Lab) -> RankPlan:
    """Which rank runs where. Raises JobSpecError where the job does not fit the lab."""
    spec = lab.spec
    places = node_of(job.placement, spec.nodes, spec.ranks_per_node)
    nodes = lab.nodes.list()
    return RankPlan(
        job=job,
        node_of=places,
        nodes=nodes,
        nproc_per_node=spec.ranks_per_node,
        threads=choose_threads(os.environ, num_cores(), len(places)),
        links=measured_links(lab.probe.to_json() if lab.probe else None, nodes),
    )


@dataclass
class JobRun:
    """One job while its ranks run."""

    plan: RankPlan
    program: Program
    lab: Lab
    use: Use
    folder: RunFolder
    run: dict[str, Any]
    observer: Observer

    def follow(self, stop: StopRequest) -> JobError | None:
        """Starts everything, follows it to its end, ends everything. Returns the first cause."""
        plan = self.plan
        watch = Watch(
            node_of=plan.node_of,
            node_names=[node.name for node in plan.nodes],
            timeout_s=plan.job.ddp.timeout_s,
            started_s=time.monotonic(),
        )
        agents = Agents(
            self.lab.nodes,
            plan.used_nodes,
            self.program.preload,
            plan.threads.environment(),
            cwd=str(PROJECT),
        )
        with ExitStack() as stack:
            logs = [
                stack.enter_context((self.folder.path / f"rank{rank}.log").open("wb"))
                for rank in range(len(plan.node_of))
            ]
            stack.enter_context(agents)
            stop.tell(lambda name: agents.put(0, {"event": "stop", "signal": name}))
            self._note_nodes()
            self._loop(agents, watch, logs)
            return watch.cause(self.lab_end() if watch.lost_nodes() else None)

    def lab_end(self) -> JobError | None:
        """Where the lab is no longer there: how it ended."""
        if self.use.lab_taken_down:
            return RunFailed("the lab was taken down while the job ran", fix="make cluster-up")
        if is_up(self.lab):
            return None
        return RunFailed(
            "the lab is gone: the process it lived in has ended",
            rule="a lab ends with that process, and every node and rank with it",
            fix="make cluster-up",
        )

    def _loop(self, agents: Agents, watch: Watch, logs: Sequence[IO[bytes]]) -> None:
        waiting = {node.index for node in self.plan.used_nodes}
        while not watch.ended(now_s := time.monotonic()):
            event = agents.next_event(min(TICK_S, watch.wait_s(now_s)))
            if time.monotonic() - now_s > SLEPT_S:  # as after Ctrl-Z and fg
                watch.slept(time.monotonic() - now_s)
            if event is None:
                self.observer.tick(time.monotonic())
                continue
            node, content = event
            if content["event"] == "log":
                logs[int(content["rank"])].write(str(content["line"]).encode() + b"\n")
                logs[int(content["rank"])].flush()
            progress = watch.take(node, content, time.monotonic())
            if progress:
                self._progress(progress)
            if waiting and waiting <= set(watch.ready):
                waiting.clear()
                self._start(agents, watch)

    def _start(self, agents: Agents, watch: Watch) -> None:
        path = str(self.folder.path.resolve())
        orders = self.plan.start_orders(self.program.target, path, self.folder.run_id, watch.ready)
        for node, order in orders.items():
            agents.send(node, order)

    def _progress(self, progress: PhaseProgress) -> None:
        ranks: list[RankRecords] = []
        if progress.phase == "start":
            ranks = read_ranks(self.folder.path, len(self.plan.node_of))
            header = ranks[0].header or {}
            self.run |= {"plan": header.get("plan"), "plan_sha256": header.get("plan_sha256")}
            self.folder.write("run.json", self.run)
        self.observer.progress(progress, ranks)

    def _note_nodes(self) -> None:
        """While the agents import torch: what each node says about itself."""
        nodes = self.plan.used_nodes
        self.run["nodes"] = {node.name: self.lab.nodes.facts(node).to_json() for node in nodes}
        self.folder.write("run.json", self.run)


def conclude(folder: RunFolder, run: dict[str, Any], error: JobError | None) -> RunResult:
    """Writes summary.json and steps.csv from what the ranks recorded, however they ended."""
    ranks = read_ranks(folder.path, run["world_size"])
    figures = run_figures(ranks, run["node_of"])
    error = _stop_words(error, figures, run) if isinstance(error, RunStopped) else error
    error = error or _broken_promise(ranks, figures, run)
    summary = summarize(run, ranks, folder.read("prediction.json"), error)
    folder.write("summary.json", summary)
    folder.write_text("steps.csv", steps_csv(figures))
    return RunResult(folder, run, figures, summary, ranks, error)


def _broken_promise(
    ranks: list[RankRecords], figures: RunFigures, run: Mapping[str, Any]
) -> JobError | None:
    """A run that came to its end without being what it says it is."""
    sums = [rank.end["params_sha256"] if rank.end else None for rank in ranks]
    diverged = replicas(ranks)[1] is False
    if diverged and not run["job"]["expects_divergence"]:
        listed = ", ".join(f"rank {rank} {str(each)[:8]}" for rank, each in enumerate(sums))
        return RunFailed(
            "replicas differ: the ranks ended with different parameters",
            rule="after every step all ranks hold the same parameters",
            fix="keep the run folder: it shows a bug in reducing gradients",
            seen=listed,
        )
    if figures.link_carried is False:
        return RunFailed(
            "the fabric NICs counted fewer bytes than the ranks sent",
            rule="what ranks on different nodes send crosses the link that was measured",
            fix="make cluster-down && make cluster-up",
        )
    return None


def _stop_words(stop: JobError, figures: RunFigures, run: Mapping[str, Any]) -> JobError:
    kept = len(figures.steps)
    where = f"at step {kept + 1}" if kept < run["job"]["train"]["steps"] else "after the last step"
    return RunStopped(
        f"{stop.message} {where}; {kept} steps kept in runs/latest; the lab is still up"
        if kept
        else f"{stop.message} before the first step was done; the lab is still up"
    )
