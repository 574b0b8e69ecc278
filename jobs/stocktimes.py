"""When torch's own DistributedDataParallel waits, and when gradients are ready: seen from outside.

Owns the hooks on a module and in autograd that tell. torch's class is not asked, nor changed.
"""

from functools import partial
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from ddp.outputs import find_tensors
from ddp.plan import ReductionPlan
from ddp.tasks import TaskWatch
from ddp.timing import BucketTiming
from jobs.errors import ModelError


class Waits:
    """The intervals in which torch's class, around `module`, does nothing but wait for peers.

    It waits before the module's own forward (for buffers, for new buckets), and at the end of
    backward, in a callback. One of ours is queued before that, by a hook on the first gradient, and
    queues another behind it. That it copies sums into gradients in between is not told apart.
    `num_backwards` counts those that were reduced.
    """

    def __init__(self, module: nn.Module) -> None:
        self._intervals: list[tuple[int, int]] = []
        self._since_ns: int | None = None
        self.num_backwards = 0
        self._task = TaskWatch(self._on_end_of_backward)
        # before all other hooks: what they take belongs to the forward
        self._handle = module.register_forward_pre_hook(self._on_forward, prepend=True)

    def before_forward(self) -> None:
        """torch's class is about to be called; it waits until the module's own forward begins."""
        self._since_ns = monotonic_ns() if torch.is_grad_enabled() else None

    def watch_backward_of(self, outputs: Any) -> None:
        """The next backward from what a forward returned. Raises ModelError where it returned
        nothing in which a backward could begin.
        """
        tensors = [tensor for tensor in find_tensors(outputs)[0] if tensor.grad_fn is not None]
        if torch.is_grad_enabled() and not tensors:
            raise ModelError(
                f"the model returned {type(outputs).__name__}, with no tensor to be seen in it",
                rule="with wrapper torch, waits are found from what the model returns",
                fix="return tensors, also within tuples, mappings or dataclasses",
            )
        self._task.forget()
        for tensor in tensors:
            tensor.register_hook(self._on_first_gradient)  # type: ignore[no-untyped-call]

    def take(self) -> list[tuple[int, int]]:
        """Since the last call."""
        taken, self._intervals = self._intervals, []
        return taken

    def close(self) -> None:
        self._handle.remove()

    def _on_forward(self, _module: nn.Module, _inputs: Any) -> None:
        self._end()

    def _on_first_gradient(self, _gradient: Tensor) -> None:
        self._task.watch()

    def _on_end_of_backward(self, _nested: bool) -> None:
        self.num_backwards += 1
        self._since_ns = monotonic_ns()
        Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        if self._since_ns is not None:
            self._intervals.append((self._since_ns, monotonic_ns()))
            self._since_ns = None


class ReadyTimes:
    """While entered: when the gradient of each parameter of `module` was there."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._at_ns: dict[str, int] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._note, name)
            )
            for name, parameter in self._module.named_parameters()
            if parameter.requires_grad
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self, plan: ReductionPlan) -> list[BucketTiming]:
        """The plan's buckets in the last backward, as if each had been reduced in no time."""
        at_ns, self._at_ns = self._at_ns, {}
        first_ns = min(at_ns.values())  # of a bucket whose parameters got no gradient at all
        timings = []
        for index, bucket in enumerate(plan.buckets):
            times_ns = [at_ns[name] for name in bucket.parameters if name in at_ns]
            ready_ns = max(times_ns, default=first_ns)
            num_bytes = bucket.numel * getattr(torch, bucket.dtype).itemsize
            timings.append(BucketTiming(index, num_bytes, ready_ns, ready_ns, ready_ns))
        return timings

    def _note(self, name: str, _parameter: Tensor) -> None:
        self._at_ns[name] = monotonic_ns()
