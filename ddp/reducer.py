"""The reducer: turns local gradients into their mean over ranks, during backward or after it.

Owns the hooks on parameters, the order in which buckets go (by index, the same on all ranks), and
the end of backward. A rank that must stop says why in the store and poisons the buckets that are
left, so that no peer waits for it inside one. Does not send.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic_ns

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ddp import refusals
from ddp.bucket import Bucket
from ddp.comm_hook import CommHook
from ddp.communication import CommunicationThread, Submission
from ddp.device import Line
from ddp.errors import ReductionFailed
from ddp.executor import Collective, NoCollective
from ddp.failure import FirstCause, stopped
from ddp.guard import StepGuard
from ddp.options import Options
from ddp.outputs import reachable_parameters
from ddp.rounds import Round, Slot, add_nothing, make_slots, names_of_unreduced
from ddp.tasks import TaskWatch
from ddp.timing import StepCommunication


class Reducer:
    """Reduces the gradients of `buckets`. All methods are for the thread that trains.

    With `overlap` a bucket goes as soon as it and those before it are complete, else all go at
    the end of backward, or with `explicit_sync` when `sync` is called.
    `on_first_order` is called once, at the end of the first backward that was reduced, with the
    parameters' names in the order in which their gradients came; it may call `adopt`.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        collective: Collective,
        rank: int,
        first_cause: FirstCause,
        on_failure: Callable[[], None],
        options: Options,
        on_first_order: Callable[[Sequence[str]], None],
        line: Line,
    ) -> None:
        self.collective = collective
        self.synchronize = True  # as the last forward decided
        self.hook: CommHook | None = None
        self._buckets = tuple(buckets)
        self._rank = rank
        self._first_cause = first_cause
        self._on_failure = on_failure
        self._options = options
        self._on_first_order, self._line = on_first_order, line
        self._thread = CommunicationThread(rank, first_cause, on_failure, line)
        self._round: Round | None = None
        self._tasks = TaskWatch(self._on_end_of_task)
        self._reachable: set[int] | None = set()  # by the forwards since the last reduction
        self._unreduced = self._has_reduced = False
        self._dead: str | None = None
        self._exposed: list[tuple[int, int]] = []
        self._gradients_ready_ns: int | None = None
        self._slots_by_bucket = make_slots(self._buckets)
        self._slots = [slot for slots in self._slots_by_bucket for slot in slots]
        names = [slot.name for slot in self._slots]
        self._expected = None if options.static_graph else dict.fromkeys(names, 1)
        self._hooks: list[RemovableHandle] = [
            slot.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._on_gradient, slot)
            )
            for slot in self._slots
        ]
        self._guard = StepGuard(self.check_step)

    def adopt(self, buckets: Sequence[Bucket]) -> None:
        """Go on with other buckets of the same parameters, from the next backward."""
        by_name = {slot.name: slot for slot in self._slots}
        self._buckets, self._slots_by_bucket = tuple(buckets), make_slots(buckets)
        for slots in self._slots_by_bucket:  # the old ones: hooks hold them
            slots[:] = [by_name[fresh.name].moved_to(fresh) for fresh in slots]
        self._slots = [slot for slots in self._slots_by_bucket for slot in slots]

    def check_ready(self) -> None:
        """Before a forward. Raises ReductionFailed on a wrapper that has stopped."""
        if self._dead is not None:
            raise stopped(self._dead)
        if self._round is not None and not self._tasks.inside_backward():
            self._poison("the backward before this forward was interrupted by an exception")
            self._finish()

    def check_step(self, tensors: Sequence[Tensor]) -> None:
        """Before an optimizer changes `tensors`: raises where gradients are this rank's alone."""
        if not self._unreduced:
            return
        names = names_of_unreduced(self._slots, tensors)
        if names:
            raise self.fail(refusals.unreduced(names, self._options))

    def on_forward(self, tensors: Sequence[Tensor], *, complete: bool) -> None:
        """After a forward that returned `tensors` (`complete`: and no others)."""
        if self._line.on_host and self.synchronize and not self._tasks.inside_backward():
            self._buckets[0].fingerprints.read()  # while parameters are in the caches
        for tensor in tensors:
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._on_output_gradient)  # type: ignore[no-untyped-call]
        if self._options.looks_ahead and self._reachable is not None:
            found = reachable_parameters(tensors) if complete else None
            self._reachable = None if found is None else self._reachable | found

    def sync(self) -> None:
        """Reduce what the backwards since the last call have added up. Raises ReductionFailed."""
        self.check_ready()
        self._begin()
        for slot in self._slots:
            if slot.used and slot.parameter.grad is not None:
                self._arrive(slot)
        self._close_round()

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
        return self._line.seen(step)

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
        self._guard.close()
        self._dead = self._dead or "it was closed"
        self._thread.close()

    def forget_local(self) -> None:
        """Drop the gradients that were added up and not reduced."""
        for slot in self._slots:
            slot.forget()
        self._unreduced = False

    def _on_output_gradient(self, _gradient: Tensor) -> None:
        """A gradient of the wrapper's own output: this backward is ours, whatever it brings."""
        if self.synchronize and not self._options.explicit_sync:
            self._tasks.watch_output()

    def _on_gradient(self, slot: Slot, _parameter: Tensor) -> None:
        slot.used = self._unreduced = True
        if not self.synchronize:
            return
        self._gradients_ready_ns = self._line.gradient()
        if self._options.explicit_sync:
            return
        if self._round is None:
            self._begin()
        self._tasks.watch()
        self._arrive(slot)

    def _begin(self) -> None:
        self._round = Round(self._slots, len(self._buckets), self._expected)
        if not self._options.explicit_sync:
            self._round.leave_out_known(self._slots, self._reachable)

    def _arrive(self, slot: Slot) -> None:
        current = self._round
        assert current is not None
        problem = self._problem(current, slot)
        if problem:
            self._poison(f"parameter {slot.name!r} {problem}")
            return
        slot.fill(as_view=self._options.gradient_as_bucket_view)
        if current.count(slot):
            current.ready_ns[slot.bucket.index] = self._gradients_ready_ns or monotonic_ns()
            if self._options.overlap:
                self._submit(current)

    def _problem(self, current: Round, slot: Slot) -> str | None:
        if self._dead is not None:
            return f"got a gradient after the wrapper stopped: {self._dead}"
        if slot.name in current.unused and not self._options.static_graph:
            return refusals.unreachable()
        if current.is_surplus(slot):
            return refusals.surplus(self._options)
        return refusals.bad_gradient(slot.parameter.grad)

    def _submit(self, current: Round, *, incomplete: bool = False) -> None:
        """Hand over the buckets that may go now, in index order."""
        while current.num_submitted < len(self._buckets):
            index = current.num_submitted
            if not incomplete and not current.is_complete(index):
                return
            # without overlap none goes before backward has ended, whatever is ready
            ready_ns = (self._options.overlap and current.ready_ns[index]) or monotonic_ns()
            bucket, poisoned, mark = self._buckets[index], current.poisoned, self._line.mark()
            used = tuple(slot.used for slot in self._slots_by_bucket[index])
            self._thread.submit(
                Submission(bucket, self.collective, ready_ns, poisoned, used, self.hook, mark)
            )
            current.num_submitted += 1

    def _poison(self, reason: str) -> None:
        """Give up on this round; its buckets still go, so that peers learn of it."""
        assert self._round is not None
        self._round.poisoned = True
        self._first_cause.publish(f"rank {self._rank}: {reason}")

    def _on_end_of_task(self, nested: bool) -> None:
        if self._round is None and not nested and self._tasks.is_backward():
            self._begin()  # to say that none of our parameters took part
        if self._round is None:  # nothing of ours in it (autograd.grad), or done already
            self._tasks.forget()
        elif not nested or (self._round.complete and not self._tasks.watches_outermost):
            self._close_round()  # else a checkpoint's; the outer one will tell

    def _close_round(self) -> None:
        """No more gradients will come: settle those that did not, and finish."""
        current = self._round
        assert current is not None
        late = current.without_gradient(self._slots)
        if late and not current.poisoned:
            if self._options.allows_unused and not (self._options.static_graph and self._expected):
                problem = add_nothing(late)
                if problem:
                    self._poison(problem)
            else:
                self._refuse([slot.name for slot in late])
        self._finish()

    def _refuse(self, names: Sequence[str]) -> None:
        if not self._options.lesson_deadlock:
            self._poison(refusals.unused(names, self._options))
            return
        wait_s = self._options.timeout_s / 2  # peers must still be there to hear of it
        with self.exposed():
            self._thread.wait_for_failure(wait_s)
        self._poison(refusals.deadlock(names, wait_s))

    def _die(self, reason: str) -> None:
        if self._dead is None:
            self._on_failure()
            self._first_cause.settle()
        self._dead = reason

    def _finish(self) -> None:
        """Submit what is left, wait for all of it, close the round. Raises ReductionFailed."""
        current, self._round = self._round, None
        assert current is not None
        self._tasks.forget()
        self._reachable = set()
        with self.exposed():
            self._submit(current, incomplete=True)
            self._thread.drain()
        failure = self._thread.failure
        if failure is None and current.poisoned:  # a collective that tells nobody
            failure = self._first_cause.read() or "this rank gave up"
        if failure is not None:
            self._die(failure)
            raise ReductionFailed(failure)
        for bucket in self._buckets:
            for slot, used_anywhere in zip(
                self._slots_by_bucket[bucket.index], bucket.used, strict=True
            ):
                slot.take(
                    used_anywhere=used_anywhere, as_view=self._options.gradient_as_bucket_view
                )
        self._unreduced = False
        self._learn(current)

    def _learn(self, current: Round) -> None:
        """What the first backward that was reduced tells about the next ones."""
        if self._expected is None:
            self._expected = {s.name: current.counts.get(s.name, 0) for s in self._slots}
        if not self._has_reduced and self.collective.name != NoCollective.name:
            self._has_reduced = True
            late = [slot.name for slot in self._slots if slot.name not in current.counts]
            self._on_first_order([*current.counts, *late])
