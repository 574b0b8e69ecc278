"""Communication hooks, as torch's `register_comm_hook` has them: what a hook is given and gives.

Owns the bucket as a hook sees it, and the wait for what it promised. A hook is called on the
communication thread, bucket after bucket, in the same order on all ranks.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ddp.bucket import Bucket
from ddp.errors import PeerTimeout, UsageError
from ddp.membership import Membership
from ddp.source import blame, module_words

Hook = Callable[[Any, Any], "torch.futures.Future[Tensor]"]


class GradBucket:
    """One bucket, with the methods of torch.distributed.GradBucket (which cannot be made here).

    Its tensors are the bucket's own memory: a hook may work in place.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._buffer = bucket.gradients

    def index(self) -> int:
        """Number of the bucket, in the order in which buckets go; 0 is first."""
        return self._bucket.index

    def buffer(self) -> Tensor:
        """All gradients end to end. Shape (elements,)."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace what `buffer` and `gradients` return. Raises UsageError for another size."""
        if buffer.numel() != self._bucket.gradients.numel():
            raise UsageError(
                f"set_buffer: {buffer.numel()} elements for a bucket of "
                f"{self._bucket.gradients.numel()}; give as many"
            )
        self._buffer = buffer.reshape(-1)

    def gradients(self) -> list[Tensor]:
        """Views of the buffer, in the shapes of `parameters`."""
        parts = torch.split(self._buffer, list(self._bucket.layout.numels))
        return [part.view(p.shape) for part, p in zip(parts, self.parameters(), strict=True)]

    def parameters(self) -> list[Parameter]:
        """The parameters whose gradients these are, in their order in the buffer."""
        return list(self._bucket.parameters)

    def is_last(self) -> bool:
        """Whether no bucket comes after this one in the step."""
        return self._bucket.is_last


@dataclass(frozen=True)
class CommHook:
    """A caller's hook and its state; `name` is what plans call it."""

    name: str
    state: Any
    hook: Hook
    timeout_s: float

    def __call__(self, bucket: Bucket) -> None:
        """Give `bucket` the mean that the hook makes of it.

        Raises PeerTimeout where the hook's future stays open, UsageError for a wrong result.
        """
        seen = GradBucket(bucket)
        try:
            future = self.hook(self.state, seen)
        except Exception as exc:
            raise blame(exc) or exc from exc
        if not isinstance(future, torch._C.Future):  # also what a future's then() gives
            raise UsageError(
                f"{self.name} returned {type(future).__name__}: a hook returns a torch.futures."
                "Future of the bucket's mean"
            )
        ended = threading.Event()
        future.add_done_callback(lambda _future: ended.set())
        if not ended.wait(self.timeout_s):
            raise PeerTimeout(
                f"bucket {bucket.index}, {self.name}: not done after {self.timeout_s:g} s"
            )
        mean: Any = future.wait()  # not value(): what it holds may only be queued yet, on a GPU
        if isinstance(mean, list | tuple) and len(mean) == 1:
            mean = mean[0]
        wanted = bucket.gradients
        if isinstance(mean, Tensor) and wanted.is_complex() and not mean.is_complex():
            mean = torch.view_as_complex(mean.reshape(-1, 2))  # as torch's all_reduce gives it
        if _describe(mean) != _describe(wanted):
            raise UsageError(
                f"bucket {bucket.index}, {self.name}: its future holds {_describe(mean)}, where "
                f"{_describe(wanted)} belong"
            )
        if mean.data_ptr() != wanted.data_ptr():
            wanted.copy_(mean.detach().reshape(-1))


def agree_on_hook(membership: Membership, hook: Hook) -> str:
    """The hook's name. Raises UsageError, with one text on all ranks, where they differ."""
    names = [theirs["name"] for theirs in membership.exchange("hook", {"name": hook_name(hook)})]
    for rank, name in enumerate(names):
        if name != names[0]:
            raise UsageError(
                f"rank {rank} registers {name} and rank 0 {names[0]}: register the same hook on "
                "every rank"
            )
    return hook_name(hook)


def hook_name(hook: Hook) -> str:
    """How a plan calls a hook: where it was defined."""
    name = getattr(hook, "__qualname__", type(hook).__qualname__)
    return f"hook {module_words(getattr(hook, '__module__', '?'))}.{name}"


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.numel()} elements of {value.dtype}"
    return f"a {type(value).__name__}"
