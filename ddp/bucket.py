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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.nn import Module, Parameter

from ddp.errors import PlanError
from ddp.plan import BucketLayout, ReductionPlan

FINGERPRINT_BITS = 64
# multipliers of generators modulo 2**64: L'Ecuyer's and Knuth's
WEIGHT, MULTIPLIER = 2862933555777941757, 6364136223846793005
COLUMNS = 1021  # prime, so that a shift by a power of two changes the column
SMALL = 2**16  # elements; smaller tensors are put together, as each one costs a dozen calls


@dataclass(frozen=True)
class Status:
    """What the reduced status words say."""

    num_poisoned: int
    parameters_differ: bool
    used: tuple[bool, ...] = ()  # by parameter: on any rank; empty where nobody asks


class Bucket:
    """Gradients of `parameters`, end to end in `buffer`, followed by the status."""

    def __init__(
        self,
        index: int,
        layout: BucketLayout,
        parameters: Sequence[Parameter],
        world_size: int,
    ) -> None:
        self.index = index
        self.layout = layout
        self.parameters = tuple(parameters)
        self.world_size = world_size
        device, dtype = parameters[0].device, parameters[0].dtype
        self.buffer = torch.zeros(layout.numel, dtype=dtype, device=device)
        sizes = [sum(layout.numels), layout.status_numel]
        self.gradients, self.status = torch.split(self.buffer, sizes)
        self.views = tuple(
            part.view(parameter.shape)
            for part, parameter in zip(
                torch.split(self.gradients, list(layout.numels)), parameters, strict=True
            )
        )
        self.is_last = False
        self._pieces: list[int] = []
        # on any rank, as the last status read says; on all until then
        self.used = (True,) * len(self.parameters)
        self.asks_for_use = layout.status_numel > status_numel(dtype, world_size)

    @property
    def num_bytes(self) -> int:
        """Gradient bytes, without the status."""
        return self.gradients.numel() * self.gradients.element_size()

    def write_status(self, *, poisoned: bool, used: Sequence[bool] = ()) -> None:
        """`used`: by parameter, on this rank; left out where nobody asks."""
        bits = bits_per_piece(self.buffer.dtype, self.world_size)
        value = fingerprint(self.parameters)
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


def make_all(plan: ReductionPlan, module: Module) -> list[Bucket]:
    """The buckets of a plan, over the parameters of `module`."""
    parameters = dict(module.named_parameters())
    buckets = [
        Bucket(index, layout, [parameters[name] for name in layout.parameters], len(plan.node_of))
        for index, layout in enumerate(plan.buckets)
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


@torch.no_grad()
def fingerprint(tensors: Sequence[Tensor]) -> int:
    """64 bits that change when any bit of `tensors`, all of one dtype, does; at many GB a second.

    64-bit words are summed by column modulo 2**64, an odd number of rows at once, so that a change
    of all signs shows. Sums are mixed, since weights alone would lose their highest bits; columns
    and tensors are then weighted with powers of two numbers, so that small or regular changes in
    several columns do not cancel one another. What cancels within a column escapes: two of its
    words that have changed places, or two of its highest bits.
    """
    total = 0
    for tensor in tensors:
        total = _mixed(total, tensor.numel())
    for tensor in _few(tensors):
        words, tail = _as_words(tensor)
        rows = words.numel() // COLUMNS
        whole = max(0, rows - (rows % 2 == 0)) * COLUMNS
        sums = words[:whole].view(-1, COLUMNS).sum(0)  # in 64 bits: another width is a copy
        numbers = torch.cat((sums, words[whole:])) * WEIGHT
        numbers ^= numbers >> 32
        weights = _weights(tensor.device)[: numbers.numel()]
        total = _mixed(total, int(torch.dot(numbers, weights)))
        total = _mixed(total, tail)
    return total


@cache
def _weights(device: torch.device) -> Tensor:
    return torch.full((3 * COLUMNS,), WEIGHT, device=device).cumprod(0)  # modulo 2**64


def _mixed(total: int, value: int) -> int:
    return (total * MULTIPLIER + value) % (1 << FINGERPRINT_BITS)


def _few(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The same bytes in fewer tensors: small ones that follow one another, a few at a time."""
    small: list[Tensor] = []
    numel = 0
    for tensor in tensors:
        if small and (tensor.numel() >= SMALL or numel >= 4 * SMALL):
            yield _flatten_dense_tensors(small)  # type: ignore[no-untyped-call]
            small, numel = [], 0
        if tensor.numel() >= SMALL:
            yield tensor
        else:
            small.append(tensor)
            numel += tensor.numel()
    if small:
        yield _flatten_dense_tensors(small)  # type: ignore[no-untyped-call]


def _as_words(tensor: Tensor) -> tuple[Tensor, int]:
    """The bytes of `tensor` as 64-bit words, and those that are left at the end as a number."""
    flat = tensor.reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8:
        flat = flat.clone()
    cut = flat.numel() // 8 * 8
    tail = bytes(flat[cut:].tolist()) if cut < flat.numel() else b""
    return flat[:cut].view(torch.int64), int.from_bytes(tail, "little")
