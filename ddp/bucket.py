"""Bucket: the gradients that are reduced together, in one buffer, with a few words of status.

Owns the memory, the views that become `param.grad`, and the status that is summed along with the
gradients: whether any rank gave up, a fingerprint of the bucket's parameters and, where parameters
may be unused, which of them were used. Does not decide when a bucket is reduced.

The status is `poison` (1 from each rank that gave up), the 64 bits of the fingerprint, cut into
pieces so small that their sum over all ranks is exact in the bucket's dtype, and perhaps a word
for each parameter (1 from each rank that used it). Parameters are equal everywhere if each rank
finds every sum to be its own piece times the number of ranks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ddp.errors import PlanError
from ddp.fingerprint import FINGERPRINT_BITS, Fingerprints
from ddp.plan import BucketLayout, ReductionPlan


@dataclass(frozen=True)
class Status:
    """What the reduced status words say."""

    num_poisoned: int
    parameters_differ: bool
    used: tuple[bool, ...] = ()  # by parameter: on any rank; empty where nobody asks


class Bucket:
    """Gradients of `parameters`, end to end in `buffer`, followed by the status.

    `fingerprints` are those of all buckets, by index.
    """

    def __init__(
        self,
        index: int,
        layout: BucketLayout,
        parameters: Sequence[Parameter],
        world_size: int,
        fingerprints: Fingerprints,
        buffer: Tensor,
    ) -> None:
        self.index = index
        self.fingerprints = fingerprints
        self.layout = layout
        self.parameters = tuple(parameters)
        self.world_size = world_size
        self.buffer = buffer
        sizes = [sum(layout.numels), layout.status_numel]
        self.gradients, self.status = torch.split(self.buffer, sizes)
        self.views = tuple(
            part.view(parameter.shape)
            for part, parameter in zip(
                torch.split(self.gradients, list(layout.numels)), parameters, strict=True
            )
        )
        self.is_last = False
        self._bits = bits_per_piece(buffer.dtype, world_size)
        self._pieces: list[int] = []
        # on any rank, as the last status read says; on all until then
        self.used = (True,) * len(self.parameters)
        self.asks_for_use = layout.status_numel > status_numel(buffer.dtype, world_size)

    @property
    def num_bytes(self) -> int:
        """Gradient bytes, without the status."""
        return self.gradients.numel() * self.gradients.element_size()

    def write_status(self, *, poisoned: bool, used: Sequence[bool] = ()) -> None:
        """`used`: by parameter, on this rank; left out where nobody asks."""
        bits, value = self._bits, self.fingerprints.take(self.index)
        self._pieces = [
            value >> shift & (1 << bits) - 1 for shift in range(0, FINGERPRINT_BITS, bits)
        ]
        words = [int(poisoned), *self._pieces, *map(int, used if self.asks_for_use else ())]
        self.status.copy_(torch.tensor(words, dtype=torch.float64))

    def read_status(self) -> Status:
        """What all ranks wrote, after the buffer was summed."""
        status = torch.view_as_real(self.status)[:, 0] if self.buffer.is_complex() else self.status
        num_poisoned, *words = (int(word) for word in status.tolist())
        expected = [piece * self.world_size for piece in self._pieces]
        pieces, used = words[: len(expected)], words[len(expected) :]
        return Status(num_poisoned, pieces != expected, tuple(word > 0 for word in used))

    def average(self) -> None:
        """Turn the sum over ranks into their mean."""
        self.gradients.div_(self.world_size)


Allocate = Callable[[Sequence[tuple[int, torch.dtype]]], list[Tensor]]
"""Rows of zeros on the CPU, by number of elements."""


def make_all(plan: ReductionPlan, module: Module, allocate: Allocate) -> list[Bucket]:
    """The buckets of a plan, over the parameters of `module`; on the CPU in memory as given."""
    parameters = dict(module.named_parameters())
    groups = [[parameters[name] for name in layout.parameters] for layout in plan.buckets]
    fingerprints = Fingerprints(groups)
    rows = [
        (layout.numel, group[0].dtype) for layout, group in zip(plan.buckets, groups, strict=True)
    ]
    device = groups[0][0].device
    buffers = (
        allocate(rows)
        if device.type == "cpu"
        else [torch.zeros(numel, dtype=dtype, device=device) for numel, dtype in rows]
    )
    buckets = [
        Bucket(index, layout, group, len(plan.node_of), fingerprints, buffer)
        for index, (layout, group, buffer) in enumerate(
            zip(plan.buckets, groups, buffers, strict=True)
        )
    ]
    buckets[-1].is_last = True
    return buckets


def status_numel(dtype: torch.dtype, world_size: int, num_used: int = 0) -> int:
    """How many elements the status takes in a bucket of `dtype`, of which `num_used` tell use."""
    return 1 + math.ceil(FINGERPRINT_BITS / bits_per_piece(dtype, world_size)) + num_used


def bits_per_piece(dtype: torch.dtype, world_size: int) -> int:
    """Bits that can be added up over all ranks without rounding.

    Raises PlanError where there is none: 256 ranks and more with bfloat16.
    """
    digits: int = 1 - int(math.log2(torch.finfo(dtype).eps))  # integers up to 2**digits are exact
    most: int = 2**digits // world_size
    bits = most.bit_length() - 1
    if bits < 1:
        raise PlanError(
            f"{dtype} gradients on {world_size} ranks: sums are exact only up to {2**digits}, too "
            "few for the status that travels with each bucket; use float32 gradients"
        )
    return min(bits, 32)
