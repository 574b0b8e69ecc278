"""Sums that go straight back to where their summands came from: added up and shared in one pass.

Owns that pass. It goes block by block, so that a sum is still in the core's cache when it is handed
back, and memory is read once and written once, where adding first and sharing then takes half as
much again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ddp.binding import BoundReceive
from ddp.transport import Loan

BLOCK_BYTES = 512 * 1024
"""A sum's block and that of a summand, twice, fit into what a core has of cache (1 to 2 MiB)."""


class Returning(NamedTuple):
    """One summand: what it is for, where it lies, and the loan of it."""

    receive: BoundReceive
    data: Tensor
    loan: Loan


def add_up(summands: Sequence[Returning]) -> Tensor:
    """Add all to the part that they are for, in order; the sum is in that part and, where a summand
    is the peer's own, there. It is for the caller to hand it back.
    """
    part = summands[0].receive.part
    own = [each.data for each in summands if each.loan.is_the_peers]
    add_and_share(part, [each.data for each in summands], own)
    return part


def add_and_share(part: Tensor, incoming: Sequence[Tensor], outgoing: Sequence[Tensor]) -> None:
    """Add all of `incoming` to `part`, in order, and write the sum to all of `outgoing`, too. Rows
    of equal length and dtype; the same row may be in both."""
    size = BLOCK_BYTES // part.element_size() if outgoing else max(1, part.numel())
    coming = [torch.split(each, size) for each in incoming]
    going = [torch.split(each, size) for each in outgoing]
    for index, block in enumerate(torch.split(part, size)):
        for blocks in coming:
            block.add_(blocks[index])
        for blocks in going:
            blocks[index].copy_(block)
