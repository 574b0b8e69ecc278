"""One stream of blocks between two ranks, for as long as it takes to tell how fast it is.

Owns when the sender ends and how large its blocks are; the receiver measures. Which streams run at
the same time is `ddp.probe`'s matter.

The first element of block i tells the receiver how many elements block i + IN_FLIGHT has, and 0
that it does not come: so both ends post the same messages although the sender alone decides, while
it goes, how many there are. Blocks grow on a fast link and shrink on a slow one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from ddp.transport import Pending, Transport

IN_FLIGHT = 8
SMALLEST, LARGEST = 1 << 10, 1 << 19
"""Elements (float32) of a block; every number of them is exact as a float32 itself."""
QUICK_S, SLOW_S = 0.015, 0.06
"""A block that takes less makes the next ones larger; one that takes more makes them smaller."""
PART = 4
"""A block is at most this part of what was sent before it: what a link lets pass at once before it
limits must not make blocks that it then carries for seconds."""
MIN_BLOCKS = 6


@dataclass(frozen=True)
class Length:
    """How long a stream lasts: what comes in `skip_s` is not counted, then `measure_s` is.

    On a slow link longer: until MIN_BLOCKS were counted, or `most_s` are over.
    """

    skip_s: float
    measure_s: float
    most_s: float


def send_stream(transport: Transport, peer: int, tag: int, length: Length, wait_s: float) -> None:
    """Raises TransportError; PeerTimeout where the peer takes no block for `wait_s`."""
    sizes = [SMALLEST] * IN_FLIGHT
    slots: list[Tensor] = [torch.empty(0)] * IN_FLIGHT
    pending: list[Pending | None] = [None] * IN_FLIGHT
    start = before = monotonic()
    next_size, done, counted, ended, index = SMALLEST, 0, 0, False, 0
    while index < len(sizes):
        slot = index % IN_FLIGHT
        oldest = pending[slot]
        if oldest is not None:
            oldest.wait(wait_s)
            now = monotonic()
            next_size = min(_next_size(next_size, now - before), max(done // PART, SMALLEST))
            before, done = now, done + sizes[index - IN_FLIGHT]
            counted += now - start > length.skip_s
        passed = monotonic() - start
        enough = passed > length.skip_s + length.measure_s and counted >= MIN_BLOCKS
        ended = ended or enough or passed > length.most_s
        if not ended:
            sizes.append(next_size)
        slots[slot] = _sized(slots[slot], sizes[index])
        block = slots[slot][: sizes[index]]
        block[0] = 0 if ended else next_size
        pending[slot] = transport.send(block, peer, tag)
        index += 1
    for each in pending:
        if each is not None:
            each.wait(wait_s)


def receive_stream(
    transport: Transport, peer: int, tag: int, length: Length, wait_s: float
) -> float:
    """Bytes a second while all blocks were under way. Raises as `send_stream` does."""
    slots: list[Tensor] = [torch.empty(0)] * IN_FLIGHT
    sizes = [SMALLEST] * IN_FLIGHT
    pending: list[Pending] = []

    def post(index: int) -> None:
        slot = index % IN_FLIGHT
        slots[slot] = _sized(slots[slot], sizes[index])
        pending.append(transport.recv(slots[slot][: sizes[index]], peer, tag))

    for index in range(IN_FLIGHT):
        post(index)
    start, index, came = monotonic(), 0, [(0.0, 0)]
    while index < len(sizes):
        pending[index].wait(wait_s)
        following = int(slots[index % IN_FLIGHT][0])
        if len(sizes) == index + IN_FLIGHT and following:
            sizes.append(following)
            post(index + IN_FLIGHT)
        if index <= len(sizes) - IN_FLIGHT:  # beside the last ones other streams may have ended
            came.append((monotonic() - start, sizes[index] * slots[0].element_size()))
        index += 1
    return rate(came, length)


def rate(came: Sequence[tuple[float, int]], length: Length) -> float:
    """Bytes a second of a stream of which `came` tells when it had so many bytes more.

    Between skip_s and the end of measure_s, the same time for streams that run together; a slow
    stream that had few blocks by then counts to its end.
    """
    begin, end = length.skip_s, length.skip_s + length.measure_s
    if sum(begin < at <= end for at, _ in came) < MIN_BLOCKS or came[-1][0] < end:
        begin, end = min(begin, came[-1][0] / 2), came[-1][0]
    total = before = 0.0
    for at, num_bytes in came:  # a block came evenly since the one before it was there
        inside = min(at, end) - max(before, begin)
        if inside > 0:
            total += num_bytes * inside / (at - before)
        before = at
    return total / max(end - begin, 1e-9)


def _next_size(size: int, took_s: float) -> int:
    if took_s < QUICK_S:
        return min(2 * size, LARGEST)
    return max(size // 2, SMALLEST) if took_s > SLOW_S else size


def _sized(buffer: Tensor, numel: int) -> Tensor:
    return buffer if buffer.numel() >= numel else torch.zeros(numel)
