"""DistributedDataParallel: wraps a module so that its gradients are the mean over all ranks.

Owns the wrapper's behaviour as a module. What ranks agree on first is `agreement`; reduction
during backward is `reducer`.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal, NoReturn, Unpack

import torch
import torch.distributed as dist
from torch import nn

from ddp import agreement, replanning
from ddp.algorithms import pinned
from ddp.between import between_steps
from ddp.bucket import make_all
from ddp.calibrate import Calibration, calibrate_plan
from ddp.comm_hook import CommHook, Hook, agree_on_hook
from ddp.digest import module_sha256
from ddp.drop_in import NeverCopied, TorchArguments, buffers_wanted, why_refused
from ddp.errors import UsageError
from ddp.executor import Collective, NoCollective
from ddp.fabric import Fabric
from ddp.failure import FirstCause
from ddp.join import Roll
from ddp.membership import Membership
from ddp.options import BUCKET_CAP_MB, OPTION_NAMES, Options
from ddp.outputs import find_tensors
from ddp.placing import collective_of, device_of, open_device, open_transport
from ddp.plan import ReductionPlan
from ddp.reducer import Reducer
from ddp.timing import StepCommunication


class DistributedDataParallel(NeverCopied, nn.Module):
    """`module`, with gradients that are the mean over all ranks when `backward` returns.

    Arguments as torch's class (other values than it has by default are refused where they could
    not be kept: ddp.drop_in), plus:
    algorithm: a name in ddp.algorithms.ALGORITHMS, an import path (ddp.algorithms.own), or a
      Collective.
    ring_order, ring_seed: how a ring visits ranks. segments: parts of a bucket in flight.
    overlap: reduce during backward, else after it. per_parameter: a bucket for each parameter.
    explicit_sync (with overlap=False): nothing is reduced before `sync_grads()` is called.
    rebuild_buckets: after the first backward, by the order in which gradients came on rank 0.
    lesson_deadlock: wait for an unused parameter as naive wrappers do for ever; for teaching.
    transport: what carries our schedules' chunks, sockets of our own or torch's messages.
    shared_memory: with sockets, ranks of a node read each other's buckets, where they can.
    fabric: where ranks live; None: found out (DDPLAB_NODE, GROUP_RANK, else the kernel).
    timeout_s: the longest wait for a peer.
    Where the module is on a GPU, NCCL reduces: algorithm hierarchical, native or noop.

    Every rank of `process_group` must construct it, with equal models and arguments (compared
    first; UsageError with one text on all ranks); parameters and buffers then come from rank 0.

    What differs from torch's class:
    - The sum is divided by the number of ranks afterwards. With `noop`, gradients stay local.
    - A parameter that gets no gradient in a backward stops all ranks, by name, at its end, unless
      find_unused_parameters or static_graph is set; then a gradient that no rank has stays as it
      was. So does a second gradient in one backward (without static_graph), or one with a graph.
      Layers with sparse gradients are refused.
    - `param.grad` is a view of bucket memory by default: a reference kept to it changes later.
    - The last forward with gradients enabled decides whether backwards synchronise (`no_sync`).
      Every backward is reduced, a second one through the same graph too, and one through
      `.module` as the last forward decided. `autograd.grad` is local.
    - An optimizer of torch that is about to use gradients that were not reduced raises.
    - Buffers are broadcast before a forward in training mode with gradients enabled and outside
      no_sync. No other forward communicates: one rank may evaluate alone.
    - Parameters without elements are left to autograd. With bucket_cap_mb given, the first bucket
      still has first_bucket_mb. Copying or pickling the wrapper is refused: use `.module`.
    - Keys of state_dict begin with "module.", as torch's do; load into `.module` what has none.
    - The mean is over ranks: where batches differ in size, weight each rank's loss.
    - `join` ends the loop on all ranks when the first runs out of data. Hooks have their thread.
    - Parameters are compared across ranks in every step, by fingerprint: drift stops all ranks.
    After ReductionFailed the wrapper is dead on every rank, and says so.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: Any = 0,
        *,
        algorithm: str | Collective = "hierarchical",
        ring_order: str = "contiguous",
        ring_seed: int = 0,
        segments: int | Literal["auto"] = "auto",
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        first_bucket_mb: float = 1.0,
        overlap: bool = True,
        per_parameter: bool = False,
        broadcast_buffers: bool | None = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        explicit_sync: bool = False,
        rebuild_buckets: bool = True,
        lesson_deadlock: bool = False,
        transport: Literal["sockets", "torch"] = "sockets",
        shared_memory: bool = True,
        gradient_as_bucket_view: bool = True,
        fabric: Fabric | None = None,
        timeout_s: float = 60.0,
        **torchs: Unpack[TorchArguments],
    ) -> None:
        refusal = why_refused(device_of(module), device_ids, output_device, dim, torchs)
        broadcast_buffers = buffers_wanted(broadcast_buffers, torchs)
        bucket_cap_mb = BUCKET_CAP_MB if bucket_cap_mb is None else bucket_cap_mb
        given = {name: value for name, value in locals().items() if name in OPTION_NAMES}
        given["algorithm"] = pinned(algorithm) if isinstance(algorithm, str) else algorithm.name
        super().__init__()
        self.module = module
        self._options = Options(**given)
        self._membership = Membership(process_group, timeout_s)
        self._in_no_sync = False
        self._roll: Roll | None = None
        self._set_up(algorithm, fabric)

    def _set_up(self, algorithm: str | Collective, fabric: Fabric | None) -> None:
        """Agree with the other ranks, connect to them, begin with what rank 0 has."""
        membership, module, options = self._membership, self.module, self._options
        self._fabric, self._plan = agreement.agree(
            membership, module, options, fabric, registered=isinstance(algorithm, str)
        )
        self._wrapped_as = agreement.parameter_shapes(module)
        self._group = membership.connect()
        first_cause = FirstCause(membership.store, membership.rank, membership.size)
        self._line = open_device(device_of(module), membership, self._group, first_cause.read)
        open_transport(self._group, self._fabric, self._options)
        self._group.broadcast_bytes([*module.parameters(), *module.buffers()])
        self._chooser, self._plan = replanning.agree_on_choice(
            membership, self._group, module, options, self._fabric, self._plan
        )
        if isinstance(algorithm, str):
            algorithm = collective_of(options, self._plan, self._fabric, self._group, self._chooser)
        self._reducer = Reducer(
            make_all(self._plan, module, self._group.allocate_all),
            algorithm,
            membership.rank,
            first_cause,
            self._group.close,
            options,
            self._rebuild,
            self._line,
        )

    @property
    def plan(self) -> ReductionPlan:
        """What fixes the order of float sums in the next backward; the first may change it."""
        return self._plan

    @property
    def fabric(self) -> Fabric:
        """Which node each rank lives on."""
        return self._fabric

    @property
    def shares_memory_with(self) -> tuple[int, ...]:
        """The ranks of this node that read this one's buckets, and it theirs."""
        return self._group.shares_memory_with

    @property
    def collective(self) -> Collective:
        """What sums the buckets. Changed for a while by `reduce_with`."""
        return self._reducer.collective

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward. Raises ReductionFailed, UsageError."""
        self._reducer.check_ready()
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        changed = agreement.changed_since(self._wrapped_as, self.module)
        if changed:
            raise self._reducer.fail(changed)
        self._reducer.synchronize = not self._in_no_sync
        recomputing = torch._C._current_graph_task_id() != -1  # a checkpoint's second forward
        if not self._in_no_sync and not recomputing:
            if self._roll:
                self._roll.call()
            if self.module.training:
                self._broadcast_buffers()
        outputs = self.module(*inputs, **kwargs)
        tensors, complete = find_tensors(outputs)
        self._reducer.on_forward(tensors, complete=complete)
        return outputs

    def sync_grads(self) -> None:
        """Reduce what backwards have added up since the last call; every rank must call it, before
        the optimizer steps. Raises ReductionFailed; UsageError without explicit_sync.
        """
        if not self._options.explicit_sync:
            raise UsageError(
                "sync_grads() on a wrapper that reduces in backward: leave it out, or wrap with "
                "explicit_sync=True, overlap=False"
            )
        self._reducer.sync()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards inside make gradients add up locally, until a backward after one outside."""
        before, self._in_no_sync = self._in_no_sync, True
        try:
            yield
        finally:
            self._in_no_sync = before

    @contextmanager
    def reduce_with(self, collective: Collective) -> Iterator[None]:
        """Inside, buckets go through `collective`; every rank must do the same."""
        before, self._reducer.collective = self._reducer.collective, collective
        try:
            yield
        finally:
            self._reducer.collective = before

    def without_network(self) -> AbstractContextManager[None]:
        """Inside, nothing at all is sent; every rank must do the same."""
        return self.reduce_with(NoCollective())

    @contextmanager
    def join(self, *, throw_on_early_termination: bool = False) -> Iterator[None]:
        """Around a training loop whose ranks may have different numbers of batches.

        When the first rank leaves the loop, all others leave it in their next forward that
        synchronises, and what follows the loop inside the block is not run there; micro-batches of
        a step that was not reduced are dropped. With `throw_on_early_termination` all ranks raise
        ReductionFailed instead. An exception inside stops all ranks.
        """
        self._roll = Roll(
            self._membership, self._group, self._reducer, throws=throw_on_early_termination
        )
        try:
            with self._roll.loop():
                yield
        finally:
            self._roll = None

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Let `hook(state, bucket)` make each bucket's mean, as with torch's class: it returns a
        torch.futures.Future of the bucket's tensor. Every rank must call it, before training.

        `bucket` is a ddp.comm_hook.GradBucket. Raises UsageError where ranks give different hooks.
        """
        if self._reducer.hook is not None:
            raise UsageError("a wrapper has one communication hook: register_comm_hook was called")
        name = agree_on_hook(self._membership, hook)
        self._reducer.hook = CommHook(name, state, hook, self._options.timeout_s)
        self._plan = replace(self._plan, algorithm=name)

    def communication(self) -> StepCommunication:
        """What happened since the last call."""
        return self._reducer.communication()

    def calibrate(self) -> Calibration | None:
        """Measure this fabric through the executor; every rank must call it, between steps.

        None on a GPU, where the executor does not send.
        """
        if not self._line.on_host:
            return None
        with between_steps(self._reducer, "calibration"):
            timeout_s = self._options.timeout_s
            return calibrate_plan(self._group, self._plan, self._fabric, timeout_s)

    def verify_parameters(self) -> str:
        """SHA-256 of this rank's parameters: names, shapes, dtypes and bytes. Local.

        Buffers count only where they are not broadcast: else rank 0's are the ones that last.
        """
        return module_sha256(self.module, buffers=not self._options.broadcast_buffers)

    def abort(self, reason: str) -> NoReturn:
        """Stop this job on every rank: peers raise ReductionFailed with the same text, as we do."""
        raise self._reducer.fail(reason)

    def close(self) -> None:
        """Stop the communication thread, leave the module, close the connections."""
        self._reducer.close()
        self._group.close()

    def _rebuild(self, ready_order: Sequence[str]) -> None:
        """Make the buckets again, as rank 0's gradients came, where that changes what is in one."""
        if self._options.rebuilds:
            with between_steps(self._reducer, "buckets for the next steps"):
                plan = replanning.agree_on_rebuilt(
                    self._group, self.module, self._options, self._plan, self._chooser, ready_order
                )
            if plan != self._plan:
                self._plan = plan
                self._reducer.adopt(make_all(plan, self.module, self._group.allocate_all))

    def _broadcast_buffers(self) -> None:
        buffers = list(self.module.buffers()) if self._options.broadcast_buffers else []
        if buffers and self.collective.name != NoCollective.name:
            with between_steps(self._reducer, "buffers from rank 0"):
                self._group.broadcast_bytes(buffers)
