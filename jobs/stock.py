"""torch's own DistributedDataParallel as the wrapper of a job: as it is, or with our reduction.

Owns how torch's class is made and how it fails together. When it waits is seen by `stocktimes`;
how its own all-reduce fills the links nobody is told.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddp.calibrate import Calibration
from ddp.comm_hook import Hook
from ddp.digest import sha256_of
from ddp.errors import PeerTimeout, ReductionFailed
from ddp.fabric import Fabric
from ddp.failure import FirstCause
from ddp.hooks import HookState, reduce_hook
from ddp.membership import Membership
from ddp.plan import ReductionPlan
from ddp.timing import BucketTiming, Traffic
from ddp.transport.p2p import translate
from jobs.sections import DdpSpec
from jobs.stocktimes import ReadyTimes, Waits

STEPS_TO_PLAN = 2  # torch's class makes its buckets anew after the first step, once
TRANSPORT = "/gloo/"  # in the source position that begins its errors
HOLDS_SOCKETS = ("reducer", "logger", "process_group")  # of torch's class


@dataclass(frozen=True)
class StockCommunication:
    """What is known of a step's communication. `buckets` None: torch's class does not tell."""

    buckets: Sequence[BucketTiming] | None
    exposed: list[tuple[int, int]]
    traffic: Traffic


class Stock:
    """torch's class with its own all-reduce, or a hook, in a process group of its own.

    Every rank must construct it. Its waits are known, its buckets are not.
    """

    def __init__(self, module: nn.Module, spec: DdpSpec, hook: Hook | None = None) -> None:
        self.module = module
        group = dist.new_group(timeout=timedelta(seconds=spec.timeout_s))
        assert isinstance(group, dist.ProcessGroup)
        self._group: dist.ProcessGroup | None = group
        self._torch = TorchDDP(
            module,
            process_group=group,
            bucket_cap_mb=spec.bucket_cap_mb,
            find_unused_parameters=spec.find_unused_parameters,
            static_graph=spec.static_graph,
        )
        if hook is not None:
            self._torch.register_comm_hook(None, hook)
        membership = Membership(group, spec.timeout_s)
        self._rank, self._size = membership.rank, membership.size
        self._first_cause = FirstCause(membership.store, self._rank, self._size)
        self._waits = Waits(module)
        self._has_buffers = any(True for _ in module.buffers())
        self._alone = False

    @property
    def plan(self) -> ReductionPlan | None:
        return None

    @property
    def shares_memory_with(self) -> Sequence[int]:
        """Buckets are torch's own."""
        return ()

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.module.parameters()

    def no_sync(self) -> AbstractContextManager[None]:
        return self._torch.no_sync()

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """The forward, by torch's class; by the module itself inside `without_network`."""
        if self._alone:
            return self.module(*inputs, **kwargs)
        if self._has_buffers or self._waits.num_backwards < STEPS_TO_PLAN:
            self._waits.before_forward()
        outputs = self._torch(*inputs, **kwargs)
        if self._torch.require_backward_grad_sync:
            self._waits.watch_backward_of(outputs)
        return outputs

    @contextmanager
    def without_network(self) -> Iterator[None]:
        """Inside, the module runs by itself. Not no_sync(): whose first forward still broadcasts
        buffers, and may make the buckets anew.
        """
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def communication(self) -> StockCommunication:
        exposed = self._exposed()
        if self._size == 1:
            return StockCommunication([], exposed, Traffic(0, 0))
        sent = Traffic(0, 0) if self._alone else Traffic(None, None)
        return StockCommunication(None, exposed, sent)

    def _exposed(self) -> list[tuple[int, int]]:
        waits = self._waits.take()
        return waits if self._size > 1 else []  # alone there is nobody to wait for

    def calibrate(self) -> Calibration | None:
        return None

    def verify_parameters(self) -> str:
        """SHA-256 of this rank's parameters. Local; buffers are rank 0's before each forward."""
        return sha256_of(list(self.module.named_parameters()))

    def abort(self, reason: str) -> NoReturn:
        """Stop on every rank; where a connection broke, the peers' own words are waited for."""
        cause, own = self._first_cause, f"rank {self._rank}: {in_short(reason)}"
        text = cause.publish_symptom(own) if is_symptom(reason) else cause.publish(own)
        self._disconnect()
        cause.settle()
        raise ReductionFailed(text)

    def close(self) -> None:
        """Leave the module, close the connections. A second call does nothing."""
        self._waits.close()
        self._disconnect()

    def _disconnect(self) -> None:
        """Closes the sockets, which peers notice: nothing may refer to the group for that."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = None
        for name in HOLDS_SOCKETS:
            setattr(self._torch, name, None)


class HookedStock(Stock):
    """torch's class, whose buckets one of our algorithms reduces, as a communication hook."""

    def __init__(self, module: nn.Module, spec: DdpSpec, fabric: Fabric) -> None:
        super().__init__(module, spec)
        self._state = HookState(
            spec.algorithm,
            process_group=self._group,
            fabric=fabric,
            ring_order=spec.ring_order,
            ring_seed=spec.ring_seed,
            segments=spec.segments,
            timeout_s=spec.timeout_s,
        )
        self._torch.register_comm_hook(self._state, reduce_hook)
        self._ready: ReadyTimes | None = None

    @property
    def plan(self) -> ReductionPlan | None:
        """Known once torch's class has made its last buckets."""
        known = self._waits.num_backwards >= STEPS_TO_PLAN
        return self._state.plan(self.module) if known else None

    @contextmanager
    def without_network(self) -> Iterator[None]:
        """As without a hook; buckets are ready when the last gradient of each would have been."""
        with super().without_network(), ReadyTimes(self.module) as self._ready:
            yield
        self._ready = None

    def communication(self) -> StockCommunication:
        if self._ready:
            plan = self.plan
            return StockCommunication(self._ready.take(plan) if plan else [], [], Traffic(0, 0))
        done = self._state.communication()
        return StockCommunication(done.buckets, self._exposed(), done.traffic)

    def calibrate(self) -> Calibration:
        return self._state.calibrate()

    def abort(self, reason: str) -> NoReturn:
        try:
            self._state.abort(in_short(reason))
        finally:
            self._disconnect()

    def close(self) -> None:
        self._state.close()
        super().close()


def is_symptom(reason: str) -> bool:
    """Whether torch's transport says it, and of a peer that may know better."""
    return TRANSPORT in reason and not isinstance(translate(RuntimeError(reason)), PeerTimeout)


def in_short(reason: str) -> str:
    """What torch's transport says, in one line and without its source position."""
    if TRANSPORT not in reason:
        return reason
    return f"torch's own communication: {translate(RuntimeError(reason.partition(': ')[2]))}"
