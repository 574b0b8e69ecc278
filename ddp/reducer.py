"""The reducer: turns local gradients into their mean over ranks, during backward.

Owns the hooks on parameters, which buckets are ready, the order in which they go (by index, the
same on all ranks), and the end of backward. A rank that must stop says why in the store and
poisons the buckets that are left, so that no peer waits for it inside one. Does not send.

A backward belongs to one autograd graph task. Its end is a callback on that task; reentrant
checkpointing runs tasks inside it, whose ends are told apart from its own by the task that the
gradients of the wrapper's outputs arrived in.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from ddp.bucket import Bucket
from ddp.communication import CommunicationThread, Submission
from ddp.errors import ReductionFailed
from ddp.executor import Collective
from ddp.failure import FirstCause, stopped
from ddp.timing import StepCommunication


@dataclass
class _Slot:
    """One parameter's place in a bucket."""

    name: str
    parameter: Parameter
    bucket: Bucket
    view: Tensor


class _Round:
    """One backward that is being reduced."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.ready: set[str] = set()
        self.missing = [len(bucket.parameters) for bucket in buckets]
        self.ready_ns = [0] * len(buckets)
        self.num_submitted = 0
        self.poisoned = False


class Reducer:
    """Reduces the gradients of `buckets`. All methods are for the thread that trains.

    With `overlap` a bucket goes as soon as it and those before it are complete, else all go at
    the end of backward. `as_view`: `param.grad` becomes a view of the bucket's memory.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        collective: Collective,
        rank: int,
        first_cause: FirstCause,
        on_failure: Callable[[], None],
        *,
        overlap: bool,
        as_view: bool,
    ) -> None:
        self.collective = collective
        self.synchronize = True  # as the last forward decided
        self._buckets = tuple(buckets)
        self._rank = rank
        self._first_cause = first_cause
        self._on_failure = on_failure
        self._overlap = overlap
        self._as_view = as_view
        self._thread = CommunicationThread(rank, first_cause, on_failure)
        self._round: _Round | None = None
        self._outer_task = -1
        self._watched_task = -1
        self._dead: str | None = None
        self._exposed: list[tuple[int, int]] = []
        self._gradients_ready_ns: int | None = None
        self._slots = [
            _Slot(name, parameter, bucket, view)
            for bucket in self._buckets
            for name, parameter, view in zip(
                bucket.layout.parameters, bucket.parameters, bucket.views, strict=True
            )
        ]
        self._hooks: list[RemovableHandle] = [
            slot.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._on_gradient, slot)
            )
            for slot in self._slots
        ]

    def check_ready(self) -> None:
        """Before a forward. Raises ReductionFailed on a wrapper that has stopped."""
        if self._dead is not None:
            raise stopped(self._dead)
        if self._round is not None and torch._C._current_graph_task_id() == -1:
            self._poison("the backward before this forward was interrupted by an exception")
            self._finish()

    def on_output_gradient(self, _gradient: Tensor) -> None:
        """A gradient of the wrapper's own output: this task is a backward's outermost."""
        if self.synchronize:
            self._outer_task = torch._C._current_graph_task_id()
            self._watch_end()

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Inside, this rank does nothing but wait for peers."""
        start_ns = monotonic_ns()
        try:
            yield
        finally:
            self._exposed.append((start_ns, monotonic_ns()))

    def communication(self) -> StepCommunication:
        """What happened since the last call."""
        buckets, traffic = self._thread.take()
        step = StepCommunication(buckets, self._exposed, traffic, self._gradients_ready_ns)
        self._exposed, self._gradients_ready_ns = [], None
        return step

    def fail(self, reason: str) -> ReductionFailed:
        """Stop here and now; returns the error to raise, with the first cause."""
        if self._round is not None:  # peers may wait for us inside a bucket
            self._poison(reason)
            with suppress(ReductionFailed):
                self._finish()
        if self._dead is None:
            self._die(self._first_cause.publish(f"rank {self._rank}: {reason}"))
        return ReductionFailed(self._dead)

    def close(self) -> None:
        """Let go of the module. Its parameters keep their gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._dead = self._dead or "it was closed"
        self._thread.close()

    def _on_gradient(self, slot: _Slot, parameter: Tensor) -> None:
        if not self.synchronize:
            return
        if self._round is None:
            self._round = _Round(self._buckets)
        self._watch_end()
        problem = self._problem(slot, parameter.grad)
        if problem:
            self._poison(f"parameter {slot.name!r} {problem}")
            return
        assert parameter.grad is not None
        if parameter.grad.data_ptr() != slot.view.data_ptr():
            slot.view.copy_(parameter.grad)
            if self._as_view:
                parameter.grad = slot.view
        self._mark_ready(self._round, slot)

    def _problem(self, slot: _Slot, gradient: Tensor | None) -> str | None:
        assert self._round is not None
        if self._dead is not None:
            return f"got a gradient after the wrapper stopped: {self._dead}"
        if slot.name in self._round.ready:
            return (
                "got two gradients in one backward (a layer used twice under reentrant "
                "checkpointing does this); use checkpoint(..., use_reentrant=False)"
            )
        if gradient is None:
            return "lost its gradient to another hook before it could be reduced"
        if gradient.layout != torch.strided:
            return f"has a {gradient.layout} gradient, which cannot be reduced; use sparse=False"
        if gradient.requires_grad:
            return "has a gradient with a graph of its own; backward with create_graph=False"
        return None

    def _mark_ready(self, current: _Round, slot: _Slot) -> None:
        current.ready.add(slot.name)
        index = slot.bucket.index
        current.missing[index] -= 1
        if current.missing[index] == 0:
            current.ready_ns[index] = self._gradients_ready_ns = monotonic_ns()
            if self._overlap:
                self._submit(current)

    def _submit(self, current: _Round, *, incomplete: bool = False) -> None:
        """Hand over the buckets that may go now, in index order."""
        while current.num_submitted < len(self._buckets):
            index = current.num_submitted
            if current.missing[index] and not incomplete:
                return
            # without overlap no bucket may go before backward has ended, whatever is ready
            ready_ns = (self._overlap and current.ready_ns[index]) or monotonic_ns()
            self._thread.submit(
                Submission(self._buckets[index], self.collective, ready_ns, current.poisoned)
            )
            current.num_submitted += 1

    def _poison(self, reason: str) -> None:
        """Give up on this round; its buckets still go, so that peers learn of it."""
        assert self._round is not None
        self._round.poisoned = True
        self._first_cause.publish(f"rank {self._rank}: {reason}")

    def _watch_end(self) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._watched_task:
            self._watched_task = task
            Variable._execution_engine.queue_callback(partial(self._on_end_of_task, task))

    def _on_end_of_task(self, task: int) -> None:
        current = self._round
        if current is None:  # nothing of ours in it (autograd.grad), or done already
            self._outer_task = self._watched_task = -1
            return
        complete = not any(current.missing)
        if not complete and self._outer_task not in (-1, task):
            return  # a checkpoint's inner backward; the outer one will tell
        if not complete and not current.poisoned:
            self._poison(self._unused(current))
        self._finish()

    def _die(self, reason: str) -> None:
        if self._dead is None:
            self._on_failure()
            self._first_cause.settle()
        self._dead = reason

    def _unused(self, current: _Round) -> str:
        names = [slot.name for slot in self._slots if slot.name not in current.ready]
        listed = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        return (
            f"no gradient reached {listed} in this backward; every parameter that requires a "
            "gradient must take part in the loss on every rank (freeze the others before wrapping)"
        )

    def _finish(self) -> None:
        """Submit what is left, wait for all of it, close the round. Raises ReductionFailed."""
        current, self._round = self._round, None
        assert current is not None
        self._outer_task = self._watched_task = -1
        with self.exposed():
            self._submit(current, incomplete=True)
            self._thread.drain()
        failure = self._thread.failure
        if failure is None and current.poisoned:  # a collective that tells nobody
            failure = self._first_cause.read() or "this rank gave up"
        if failure is not None:
            self._die(failure)
            raise ReductionFailed(failure)
        if not self._as_view:
            for slot in self._slots:
                assert slot.parameter.grad is not None
                slot.parameter.grad.copy_(slot.view)
