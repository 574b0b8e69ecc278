"""The algorithms as communication hooks for torch's own DistributedDataParallel.

    model = torch.nn.parallel.DistributedDataParallel(module)
    model.register_comm_hook(HookState("hierarchical"), reduce_hook)

Owns the state of such a hook: its connections, its thread, the plan that its buckets amount to.
Only the reduction is ours then; what the wrapper checks is torch's business.
"""

import os
import queue
import threading
from dataclasses import asdict, dataclass, replace
from time import monotonic_ns
from typing import Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from ddp.agreement import agree_on_fabric, check_same, check_same_plan, dtype_name
from ddp.algorithms import AUTO, find_algorithm, pinned
from ddp.calibrate import Calibration, calibrate_plan
from ddp.errors import DdpError, PlanError, ReductionFailed, TransportError, UsageError
from ddp.executor import NoCollective, make_collective
from ddp.fabric import Fabric
from ddp.failure import FirstCause, stopped
from ddp.membership import Membership, node_identity
from ddp.own_schedule import plan_facts
from ddp.plan import BucketLayout, ReductionPlan, choose_segments
from ddp.timing import BucketTiming, StepCommunication, sum_of


@dataclass(frozen=True)
class _Choice:
    algorithm: str
    ring_order: str
    ring_seed: int
    segments: int | Literal["auto"]
    timeout_s: float


@dataclass(frozen=True)
class _Job:
    future: "torch.futures.Future[Tensor]"
    buffer: Tensor
    segments: int
    index: int
    ready_ns: int


class HookState:
    """State of `reduce_hook`: one algorithm over the ranks of `process_group`.

    Arguments as those of ddp.DistributedDataParallel. Every rank must construct it, with the same
    arguments; raises UsageError, with one text on all ranks, where they differ. `close` it at the
    end. With `noop` gradients stay local.
    """

    def __init__(
        self,
        algorithm: str = "hierarchical",
        *,
        process_group: dist.ProcessGroup | None = None,
        fabric: Fabric | None = None,
        ring_order: str = "contiguous",
        ring_seed: int = 0,
        segments: int | Literal["auto"] = "auto",
        timeout_s: float = 60.0,
    ) -> None:
        algorithm = pinned(algorithm)
        self._choice = _Choice(algorithm, ring_order, ring_seed, segments, timeout_s)
        self._membership = membership = Membership(process_group, timeout_s)
        facts = membership.exchange(
            "hook state",
            {
                "error": _why_refused(algorithm),  # said by all ranks together
                "options": asdict(self._choice),
                "node": node_identity(os.environ),
                "tensors": [],
            },
        )
        check_same(facts)
        self.fabric = agree_on_fabric(facts, fabric)
        check_same_plan(membership.exchange("plan", plan_facts(self._plan(()))))
        self._first_cause = FirstCause(membership.store, membership.rank, membership.size)
        self._group = membership.connect()
        self._group.open_transport(self.fabric, shares_memory=True)
        self._collective = make_collective(
            algorithm,
            self._plan(()).schedule(),
            membership.rank,
            self.fabric,
            self._group,
            timeout_s,
        )
        self._layouts: dict[int, tuple[BucketLayout, tuple[int, ...]]] = {}
        self._communication = StepCommunication()
        self._dead: str | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ddp-hook", daemon=True)
        self._thread.start()

    def plan(self, module: nn.Module) -> ReductionPlan:
        """The plan that the last step's buckets of `module` amount to, for ddp.Reference.

        Raises PlanError before the first step.
        """
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        if not self._layouts:
            raise PlanError("no bucket was reduced yet: the plan is known after a backward")
        return self._plan(
            tuple(
                replace(layout, parameters=tuple(names[each] for each in ids))
                for _, (layout, ids) in sorted(self._layouts.items())
            )
        )

    def communication(self) -> StepCommunication:
        """What the last backward reduced, told once. Waits are not in it: torch's class waits."""
        step, self._communication = self._communication, StepCommunication()
        return step

    def calibrate(self) -> Calibration:
        """Measure this fabric through the executor; every rank must call it, between backwards."""
        try:
            timeout_s = self._choice.timeout_s
            return calibrate_plan(self._group, self._plan(()), self.fabric, timeout_s)
        except TransportError as exc:
            raise self._stop(exc) from None

    def abort(self, reason: str) -> NoReturn:
        """Stop on every rank: raises ReductionFailed with the first cause, as the peers do."""
        raise self._stop(DdpError(reason))

    def submit(self, bucket: GradBucket) -> "torch.futures.Future[Tensor]":
        """The bucket's mean, when it is there. Buckets are reduced in the order of the calls.

        Raises ReductionFailed on a state that has stopped.
        """
        if self._dead is not None:
            raise stopped(self._dead)
        buffer, index = bucket.buffer(), bucket.index()
        if buffer.device.type != "cpu":
            raise UsageError(
                f"a bucket on {buffer.device}: this hook reduces what is on the CPU; on a GPU use "
                "ddp.DistributedDataParallel"
            )
        segments = self._choice.segments
        if segments == "auto":
            segments = choose_segments(self._choice.algorithm, buffer.nbytes, self.fabric.num_nodes)
        if index == 0:  # a step begins; torch may have made other buckets
            self._layouts.clear()
            self._communication = StepCommunication()
        parameters = bucket.parameters()
        layout = BucketLayout(
            dtype_name(buffer),
            tuple(map(str, range(len(parameters)))),
            tuple(parameter.numel() for parameter in parameters),
            segments,
        )
        self._layouts[index] = (layout, tuple(map(id, parameters)))
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._jobs.put(_Job(future, buffer, segments, index, monotonic_ns()))
        # an error must go through a callback: torch's class takes what is in a future for a tensor
        return future.then(lambda done: done.value())

    def close(self) -> None:
        """Stop the thread and close the connections. A second call does nothing."""
        self._dead = self._dead or "it was closed"
        self._jobs.put(None)
        self._thread.join()
        self._group.close()

    def _plan(self, buckets: tuple[BucketLayout, ...]) -> ReductionPlan:
        choice = self._choice
        return ReductionPlan(
            choice.algorithm, choice.ring_order, choice.ring_seed, self.fabric.node_of, buckets
        )

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._dead is not None:
                job.future.set_exception(stopped(self._dead))  # type: ignore[arg-type]
                continue
            try:
                with torch.no_grad():
                    self._reduce(job)
            except Exception as exc:
                job.future.set_exception(self._stop(exc))  # type: ignore[arg-type]
            else:
                job.future.set_result(job.buffer)

    def _reduce(self, job: _Job) -> None:
        start_ns = monotonic_ns()
        traffic = self._collective.all_reduce(job.buffer, job.segments, job.index)
        if self._collective.name != NoCollective.name:
            job.buffer.div_(self._membership.size)
        step, num_bytes = self._communication, job.buffer.nbytes
        step.buckets.append(
            BucketTiming(job.index, num_bytes, job.ready_ns, start_ns, monotonic_ns())
        )
        step.traffic = sum_of(step.traffic, traffic)

    def _stop(self, error: Exception) -> ReductionFailed:
        """Stop on all ranks, for the first cause; nothing new where that was done."""
        if self._dead is None:
            reason = f"rank {self._membership.rank}: {error}"
            self._dead = self._first_cause.publish_error(error, reason)
            self._group.close()
            self._first_cause.settle()
        return ReductionFailed(self._dead)


def _why_refused(algorithm: str) -> str | None:
    if algorithm == AUTO:
        return (
            "algorithm='auto' chooses for the buckets of ddp.DistributedDataParallel, and torch's "
            "class makes its own: give an algorithm by name"
        )
    try:
        find_algorithm(algorithm)
    except UsageError as exc:
        return str(exc)
    return None


# torch compares these annotations: they must not be strings
def reduce_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """For `register_comm_hook(state, reduce_hook)`: the mean over ranks, by `state`'s algorithm."""
    return state.submit(bucket)
