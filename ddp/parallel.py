"""DistributedDataParallel: wraps a module so that its gradients are the mean over all ranks.

Owns the wrapper's behaviour as a module. What ranks agree on first is `agreement`; reduction
during backward is `reducer`.
"""

import ctypes
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ddp import agreement
from ddp.bucket import Bucket
from ddp.calibrate import Calibration, calibrate
from ddp.errors import TransportError, UsageError
from ddp.executor import Collective, NoCollective, make_collective
from ddp.fabric import Fabric
from ddp.failure import FirstCause
from ddp.membership import Membership
from ddp.plan import ReductionPlan
from ddp.reducer import Reducer
from ddp.timing import StepCommunication
from ddp.transport.p2p import P2PTransport


class DistributedDataParallel(nn.Module):
    """`module`, with gradients that are the mean over all ranks when `backward` returns.

    Arguments as torch's class where the names are the same, plus:
    algorithm: a name in ddp.algorithms.ALGORITHMS, or a Collective.
    ring_order, ring_seed: how a ring visits ranks. segments: parts of a bucket in flight.
    overlap: reduce during backward, else after it. per_parameter: a bucket for each parameter.
    fabric: where ranks live; None: found out (DDPLAB_NODE, GROUP_RANK, else the kernel).
    timeout_s: the longest wait for a peer.

    Every rank of `process_group` must construct it, with equal models and arguments (compared
    first; UsageError with one text on all ranks); parameters and buffers then come from rank 0.

    What differs from torch's class:
    - The sum is divided by the number of ranks afterwards. With `noop`, gradients stay local.
    - A parameter that gets no gradient in a backward stops all ranks, by name, at its end. So does
      a sparse gradient, a second gradient in one backward, a gradient with a graph.
    - `param.grad` is a view of bucket memory by default: a reference kept to it changes later.
    - The last forward with gradients enabled decides whether backwards synchronise (`no_sync`).
      Every backward is reduced, a second one through the same graph too. `autograd.grad` is local.
    - Buffers are broadcast before a forward in training mode with gradients enabled and outside
      no_sync. No other forward communicates: one rank may evaluate alone.
    - Parameters without elements are left to autograd. With bucket_cap_mb given, the first bucket
      still has first_bucket_mb. Copying or pickling the wrapper is refused: use `.module`.
    - Parameters are compared across ranks in every step, by fingerprint: drift stops all ranks.
    After ReductionFailed the wrapper is dead on every rank, and says so.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        algorithm: str | Collective = "hierarchical",
        ring_order: str = "contiguous",
        ring_seed: int = 0,
        segments: int | Literal["auto"] = "auto",
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
        first_bucket_mb: float = 1.0,
        overlap: bool = True,
        per_parameter: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = True,
        fabric: Fabric | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        super().__init__()
        self.module = module
        self._options = agreement.Options(
            algorithm if isinstance(algorithm, str) else algorithm.name,
            ring_order,
            ring_seed,
            segments,
            bucket_cap_mb,
            first_bucket_mb,
            overlap,
            per_parameter,
            broadcast_buffers,
            gradient_as_bucket_view,
            timeout_s,
        )
        membership = Membership(process_group, timeout_s)
        self._rank = membership.rank
        self._fabric, self._plan = agreement.agree(
            membership, module, self._options, fabric, registered=isinstance(algorithm, str)
        )
        self._requires_grad = {name: p.requires_grad for name, p in module.named_parameters()}
        self._group = membership.connect()
        self._group.broadcast_bytes(self._state())
        self._reducer = self._make_reducer(
            self._make_collective(algorithm),
            FirstCause(membership.store, membership.rank, membership.size),
        )
        self._in_no_sync = False

    @property
    def plan(self) -> ReductionPlan:
        """Everything that fixes the order of float sums; the same on all ranks."""
        return self._plan

    @property
    def fabric(self) -> Fabric:
        """Which node each rank lives on."""
        return self._fabric

    @property
    def collective(self) -> Collective:
        """What sums the buckets. Changed for a while by `reduce_with`."""
        return self._reducer.collective

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward. Raises ReductionFailed, UsageError."""
        self._reducer.check_ready()
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        self._check_trainable()
        self._reducer.synchronize = not self._in_no_sync
        if self.module.training:
            self._broadcast_buffers()
        outputs = self.module(*inputs, **kwargs)
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.requires_grad and not output.is_leaf:
                output.register_hook(  # type: ignore[no-untyped-call]
                    self._reducer.on_output_gradient
                )
        return outputs

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

    def communication(self) -> StepCommunication:
        """What happened since the last call."""
        return self._reducer.communication()

    def calibrate(self) -> Calibration:
        """Measure this fabric through the executor; every rank must call it, between steps."""
        with self._between_steps("calibration"):
            transport = P2PTransport(self._group)
            return calibrate(transport, self._rank, self._fabric, self._options.timeout_s)

    def verify_parameters(self) -> str:
        """SHA-256 of this rank's parameters: names, shapes, dtypes and bytes. Local.

        Buffers count only where they are not broadcast: else rank 0's are the ones that last.
        """
        named: list[tuple[str, Tensor]] = list(self.module.named_parameters())
        if not self._options.broadcast_buffers:
            named += self.module.named_buffers()
        digest = hashlib.sha256()
        for name, tensor in named:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            flat = tensor.detach().contiguous()
            memory = (ctypes.c_ubyte * flat.nbytes).from_address(flat.data_ptr())  # without numpy
            digest.update(memory)
        return digest.hexdigest()

    def abort(self, reason: str) -> NoReturn:
        """Stop this job on every rank: peers raise ReductionFailed with the same text, as we do."""
        raise self._reducer.fail(reason)

    def close(self) -> None:
        """Stop the communication thread, leave the module, close the connections."""
        self._reducer.close()
        self._group.close()

    def __getstate__(self) -> NoReturn:
        raise UsageError(
            "a wrapper holds connections to other processes and cannot be copied or pickled; "
            "copy wrapper.module, or save wrapper.state_dict()"
        )

    def _make_collective(self, algorithm: str | Collective) -> Collective:
        if not isinstance(algorithm, str):
            return algorithm
        return make_collective(
            algorithm,
            self._plan.schedule(),
            self._rank,
            self._fabric,
            self._group,
            self._options.timeout_s,
        )

    def _make_reducer(self, collective: Collective, first_cause: FirstCause) -> Reducer:
        parameters = dict(self.module.named_parameters())
        buckets = [
            Bucket(
                index, layout, [parameters[name] for name in layout.parameters], self._group.size
            )
            for index, layout in enumerate(self._plan.buckets)
        ]
        return Reducer(
            buckets,
            collective,
            self._rank,
            first_cause,
            self._group.close,
            overlap=self._options.overlap,
            as_view=self._options.gradient_as_bucket_view,
        )

    def _state(self) -> list[Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def _broadcast_buffers(self) -> None:
        local = self._in_no_sync or self.collective.name == NoCollective.name
        recomputing = torch._C._current_graph_task_id() != -1  # a checkpoint's second forward
        buffers = list(self.module.buffers())
        if self._options.broadcast_buffers and buffers and not local and not recomputing:
            with self._between_steps("buffers from rank 0"):
                self._group.broadcast_bytes(buffers)

    @contextmanager
    def _between_steps(self, what: str) -> Iterator[None]:
        """Communication outside a backward: exposed, and fatal where it fails."""
        failure: str | None = None
        with self._reducer.exposed():
            try:
                yield
            except TransportError as exc:
                failure = str(exc)
        if failure is not None:
            raise self._reducer.fail(f"{what}, between two steps: {failure}")

    def _check_trainable(self) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad != self._requires_grad.get(name):
                raise UsageError(
                    f"parameter {name!r} was frozen, unfrozen or added after wrapping; "
                    "close the wrapper and wrap the module again"
                )
