"""One backward that is being reduced: which gradients have come, and which are still to come.

Owns how often each parameter's gradient is expected and when a bucket is complete. Sends nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from ddp import refusals
from ddp.bucket import Bucket


@dataclass
class Slot:
    """One parameter's place in a bucket. `used`: it got a gradient since the last reduction."""

    name: str
    parameter: Parameter
    bucket: Bucket
    view: Tensor
    used: bool = False
    kept: Tensor | None = None  # the gradient before the reduction, where this rank added nothing

    @property
    def is_odd(self) -> bool:
        """Whether there is a gradient that cannot be copied into a bucket."""
        return self.parameter.grad is not None and self.parameter.grad.layout != torch.strided

    def moved_to(self, other: "Slot") -> "Slot":
        """This slot, from now on at the place of another."""
        self.bucket, self.view = other.bucket, other.view
        return self

    def fill(self, *, as_view: bool) -> None:
        """Bring the parameter's gradient into the bucket; zeros where there is none."""
        gradient = self.parameter.grad
        if gradient is None:
            self.view.zero_()
        elif gradient.data_ptr() != self.view.data_ptr():
            self.view.copy_(gradient)
            if as_view:
                self.parameter.grad = self.view

    def fill_unused(self) -> None:
        """As `fill`, for a gradient that must survive if no other rank has one either."""
        gradient = self.parameter.grad
        self.kept = None if gradient is None else gradient.clone()
        self.used &= gradient is not None
        self.fill(as_view=False)

    def forget(self) -> None:
        """Drop a gradient that was not reduced."""
        if self.used:
            self.parameter.grad, self.used = None, False

    def take(self, *, used_anywhere: bool, as_view: bool) -> None:
        """Make the reduced gradient the parameter's; untouched where no rank has used it."""
        gradient = self.parameter.grad
        if not used_anywhere:
            if gradient is not None and self.kept is not None:
                gradient.copy_(self.kept)
        elif as_view:
            self.parameter.grad = self.view
        elif gradient is None:
            self.parameter.grad = self.view.clone()
        else:
            gradient.copy_(self.view)
        self.used, self.kept = False, None


class Round:
    """`expected`: how often each parameter gets a gradient; None: not known before the end."""

    def __init__(
        self, slots: Sequence[Slot], num_buckets: int, expected: Mapping[str, int] | None
    ) -> None:
        self.counts: dict[str, int] = {}  # in the order of the last gradient
        self.unused: set[str] = set()  # known not to get one
        self.ready_ns = [0] * num_buckets
        self.num_submitted = 0
        self.poisoned = False
        self.expected = expected
        self._open = [0] * num_buckets
        for slot in slots:
            self._open[slot.bucket.index] += 1

    def count(self, slot: Slot) -> bool:
        """One more gradient. Whether it completes its bucket."""
        num = self.counts.pop(slot.name, 0) + 1
        self.counts[slot.name] = num
        return self.expected is not None and num == self.expected[slot.name] and self._close(slot)

    def leave_out_known(self, slots: Iterable[Slot], reachable: Collection[int] | None) -> None:
        """Do not wait for those of which it is known already that no gradient will come.

        `reachable`: ids of the parameters that may get one; empty or None where that is not known.
        """
        for slot in slots:
            expects_none = self.expected is not None and not self.expected[slot.name]
            known = expects_none or (reachable and id(slot.parameter) not in reachable)
            if known and not slot.is_odd:
                slot.fill_unused()
                self.unused.add(slot.name)
                self._close(slot)

    def is_surplus(self, slot: Slot) -> bool:
        """Whether another gradient is one too many."""
        return self.expected is not None and (
            self.counts.get(slot.name, 0) >= self.expected[slot.name]
        )

    def is_complete(self, bucket: int) -> bool:
        return not self._open[bucket]

    @property
    def complete(self) -> bool:
        return not any(self._open)

    def without_gradient(self, slots: Iterable[Slot]) -> list[Slot]:
        """Those from which fewer gradients came than expected, or none."""
        wanted = self.expected or {}
        return [
            slot
            for slot in slots
            if slot.name not in self.unused
            and self.counts.get(slot.name, 0) < wanted.get(slot.name, 1)
        ]

    def _close(self, slot: Slot) -> bool:
        self._open[slot.bucket.index] -= 1
        return not self._open[slot.bucket.index]


def make_slots(buckets: Sequence[Bucket]) -> list[list[Slot]]:
    """The slots of each bucket."""
    return [
        [
            Slot(name, parameter, bucket, view)
            for name, parameter, view in zip(
                bucket.layout.parameters, bucket.parameters, bucket.views, strict=True
            )
        ]
        for bucket in buckets
    ]


def names_of_unreduced(slots: Iterable[Slot], tensors: Iterable[Tensor]) -> list[str]:
    """The parameters among `tensors` that have a gradient which is this rank's alone."""
    local = {id(slot.parameter): slot.name for slot in slots if slot.used}
    return [local[id(t)] for t in tensors if t.grad is not None and id(t) in local]


def add_nothing(slots: Iterable[Slot]) -> str | None:
    """Bring into the buckets that no gradient came; returns what is wrong with an earlier one."""
    for slot in slots:
        if slot.is_odd:
            return f"parameter {slot.name!r} {refusals.bad_gradient(slot.parameter.grad)}"
        slot.fill_unused()
    return None
