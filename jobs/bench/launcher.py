"""Runs a bench on a lab: one agent per node, its ranks watched, everything ended.

Owns the order of it on the launcher's side. Why it ended is decided by `watch`; what the ranks
found is made into a table by `rows`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cluster.errors import ClusterError
from cluster.site import Site
from jobs.agents import AgentEvent, Agents
from jobs.bench.asked import BenchSpec, job_of
from jobs.bench.estimate import timeout_s
from jobs.errors import JobError, LaunchError, RunFailed, RunStopped
from jobs.handover import require_seen
from jobs.launch import SLEPT_S, TICK_S, plan_ranks
from jobs.progress import PhaseProgress
from jobs.rankplan import Program, RankPlan, preloads
from jobs.stopping import StopRequest, stop_signals
from jobs.underlay import Underlay, lost_fix, underlay_of
from jobs.watch import Watch

BENCH = Program("jobs.bench.rank:main", ("torch", "jobs.bench.rank"))
WHAT = "bench of all-reduces"


class Observer(Protocol):
    """Whoever shows a bench while it goes."""

    def told(self, document: Mapping[str, Any]) -> None:
        """What the ranks knew before the first round: predictions among it."""

    def progress(self, phase: PhaseProgress) -> None:
        """All ranks have started, or have come to the end of a turn."""

    def tick(self, now_s: float) -> None:
        """Some time has passed."""

    def end(self) -> None:
        """No rank runs any more."""


@dataclass(frozen=True)
class Found:
    """What the ranks told: before the first round, and each of them (by rank) at the end."""

    told: Mapping[str, Any]
    ranks: list[Mapping[str, Any]]


def run_bench(
    bench: BenchSpec, site: Site, runs: Path, observer: Observer, program: Program = BENCH
) -> Found:
    """To its end. Raises JobError, the first cause, or ClusterError; nothing is kept then."""
    jobs = [job_of(each) for each in bench.contenders]
    first = jobs[0]
    require_seen(site.nodes, runs, jobs)
    patience_s = max(first.ddp.timeout_s, timeout_s(bench, site))
    ddp = first.ddp.model_copy(update={"timeout_s": patience_s})
    plan = plan_ranks(first.model_copy(update={"ddp": ddp}), site)
    with stop_signals() as stop, underlay_of(site, WHAT) as underlay:
        underlay.require_limited()
        run = _Run(bench, plan, site, underlay, observer, program)
        try:
            error = run.follow(stop)
        except ClusterError as exc:
            error = underlay.end() or LaunchError(exc.message, exc.rule, exc.fix, seen=exc.seen)
        finally:
            observer.end()
        if isinstance(error, RunStopped):
            raise RunStopped(f"{error.message}; nothing is kept of a bench; the lab is still up")
        if error:
            raise error
        return run.found()


class _Run:
    def __init__(
        self,
        bench: BenchSpec,
        plan: RankPlan,
        site: Site,
        underlay: Underlay,
        observer: Observer,
        program: Program,
    ) -> None:
        self._bench, self._plan, self._site = bench, plan, site
        self._underlay, self._observer, self._program = underlay, observer, program
        self._told: Mapping[str, Any] = {}
        self._results: dict[int, Mapping[str, Any]] = {}
        self._watch = Watch(
            node_of=plan.node_of,
            node_names=[node.name for node in plan.nodes],
            timeout_s=plan.job.ddp.timeout_s,
            started_s=time.monotonic(),
            lost_fix=lost_fix(site),
        )

    def found(self) -> Found:
        return Found(self._told, [self._results[rank] for rank in sorted(self._results)])

    def follow(self, stop: StopRequest) -> JobError | None:
        """Starts everything, follows it to its end, ends everything. Returns the first cause."""
        plan, watch = self._plan, self._watch
        with Agents(
            self._site.nodes,
            plan.used_nodes,
            preloads(self._program, [plan.job]),
            plan.threads.environment(),
            cwd=self._site.nodes.project,
        ) as agents:
            stop.tell(lambda name: agents.put(0, {"event": "stop", "signal": name}))
            waiting = {node.index for node in plan.used_nodes}
            while not watch.ended(now_s := time.monotonic()):
                event = agents.next_event(min(TICK_S, watch.wait_s(now_s)))
                if time.monotonic() - now_s > SLEPT_S:
                    watch.slept(time.monotonic() - now_s)
                if self._underlay.changes(()):
                    return _links_changed()
                if event is None:
                    self._observer.tick(time.monotonic())
                    continue
                self._take(event)
                if waiting and waiting <= set(watch.ready):
                    waiting.clear()
                    self._start(agents)
            return watch.cause(self._underlay.end() if watch.lost_nodes() else None)

    def _take(self, event: AgentEvent) -> None:
        node, content = event
        if content["event"] == "message":
            data = content["data"]
            if data["kind"] == "prediction":
                self._told = data["document"]
                self._observer.told(self._told)
            elif data["kind"] == "finished":
                self._results[int(content["rank"])] = data["result"]
        progress = self._watch.take(node, content, time.monotonic())
        if progress:
            self._observer.progress(progress)

    def _start(self, agents: Agents) -> None:
        orders = self._plan.start_orders(self._program.target, None, "bench", self._watch.ready)
        bench = self._bench.model_dump(mode="json")
        for node, order in orders.items():
            for rank in order["ranks"]:
                rank["argument"] = {"rank": rank["argument"], "bench": bench}
            agents.send(node, order)


def _links_changed() -> JobError:
    return RunFailed(
        "links of the lab were changed while the bench went on",
        rule="its rounds are of one lab with the same links throughout",
        fix="once more, with nobody changing links: make bench",
    )
