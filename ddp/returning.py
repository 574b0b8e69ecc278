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

BLOCK_BYTES = 256 * 1024
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
    own = [each for each in summands if each.loan.is_the_peers]
    size = BLOCK_BYTES // part.element_size() if own else part.numel()
    incoming = [torch.split(each.data, size) for each in summands]
    outgoing = [torch.split(each.data, size) for each in own]
    for index, block in enumerate(torch.split(part, size)):
        for blocks in incoming:
            block.add_(blocks[index])
        for blocks in outgoing:
            blocks[index].copy_(block)
    return part
