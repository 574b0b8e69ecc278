"""Sums that go straight back: which they are, and that they land where they are wanted."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from ddp.algorithms import find_algorithm
from ddp.binding import BoundReceive
from ddp.fabric import Fabric
from ddp.program import project
from ddp.replay import replay
from ddp.returning import BLOCK_BYTES, Returning, add_up
from ddp.schedule import Schedule, Stage, Transfer
from tests.ddp.samples import random_buffers

A, B = 0, 1  # chunks


def add(src: int, dst: int, chunk: int = A) -> Transfer:
    return Transfer(src, dst, chunk, reduce=True)


def share(src: int, dst: int, chunk: int = A) -> Transfer:
    return Transfer(src, dst, chunk, reduce=False)


def schedule_of(*stages: Stage, num_ranks: int = 3) -> Schedule:
    return Schedule(num_ranks, 2, "made-up", partial(iter, stages))


def returning(schedule: Schedule, rank: int) -> list[list[tuple[int, int, int]]]:
    """By stage: source, first and last chunk."""
    return [
        sorted((message.src, message.first, message.last) for message in action.returning)
        for action in project(schedule, rank)
    ]


@pytest.mark.parametrize(
    ("name", "node_of", "rank", "expected"),
    [
        ("ring", (0, 0), 1, [[(0, 0, 0)], []]),
        ("ring", (0, 0, 0), 1, [[], [], [], []]),
        ("hierarchical", (0, 0, 0), 1, [[(0, 1, 1), (2, 1, 1)], []]),
        ("hierarchical", (0, 0, 1, 1), 1, [[], [(3, 3, 3)], [], []]),
        ("hierarchical_leader", (0, 0, 0), 0, [[(1, 0, 0), (2, 0, 0)], []]),
        ("hierarchical_leader", (0, 0, 0), 1, [[], []]),
        ("halving_doubling", (0, 0, 0, 0), 0, [[], [(2, 0, 0)], [], []]),
        ("recursive_doubling", (0, 0), 0, [[]]),
        ("parameter_server", (0, 0, 0), 0, [[], [(2, 0, 0)], []]),
    ],
)
def test_which_sums_go_straight_back(
    name: str, node_of: tuple[int, ...], rank: int, expected: list[list[Any]]
) -> None:
    build = find_algorithm(name).build
    assert build is not None
    assert returning(build(Fabric(node_of), "contiguous", 0), rank) == expected


BOTH = (add(1, 0), add(2, 0))
BACK = (share(0, 1), share(0, 2))
NOT_ALONE: dict[str, Sequence[Stage]] = {
    "the peer sends it to another, too": [(add(1, 0), share(1, 2)), BACK],
    "the peer is sent it by another, too": [(add(1, 0), add(2, 1)), BACK],
    "the peer sends it on in the stage in which it comes back": [
        (add(1, 0),),
        (share(0, 1), share(1, 2)),
    ],
    "it is sent where it is added": [(add(1, 0), add(0, 1)), (share(0, 1),)],
    "it comes back a stage later": [(add(1, 0),), (add(2, 0),), BACK],
    "only one of two goes back": [BOTH, (share(0, 1),)],
    "the other covers more": [(add(1, 0), add(2, 0), add(2, 0, B)), BACK],
    "more goes back than came": [(add(1, 0),), (share(0, 1), share(0, 1, B))],
}


@pytest.mark.parametrize("why", NOT_ALONE)
def test_a_chunk_that_others_touch_is_not_written_before_its_time(why: str, in_memory: Any) -> None:
    schedule = schedule_of(*NOT_ALONE[why])
    assert returning(schedule, 0)[0] == []
    buffers = random_buffers(3, 6)
    for seed in range(3):
        results, _ = in_memory(schedule, Fabric((0, 0, 0)), buffers, 1, seed=seed, max_delay_s=0.01)
        for result, expected in zip(results, replay(schedule, buffers), strict=True):
            assert torch.equal(result, expected)


def test_what_is_added_to_a_chunk_is_added_in_the_order_listed(in_memory: Any) -> None:
    """-1e8 + 1e8 + 1 is 1, and -1e8 + 1 + 1e8 is 0; each neighbour has chunks that could travel
    as one message."""
    crossed = schedule_of((add(1, 0, A), add(2, 0, A), add(2, 0, B), add(1, 0, B)))
    buffers = [torch.tensor([value, value]) for value in (-1e8, 1e8, 1.0)]
    results, _ = in_memory(crossed, Fabric((0, 0, 0)), buffers, 1)
    assert results[0].tolist() == [1.0, 0.0]
    assert replay(crossed, buffers)[0].tolist() == [1.0, 0.0]


class Lent:
    """A loan of a row."""

    def __init__(self, is_the_peers: bool) -> None:
        self.is_the_peers = is_the_peers

    def wait(self, timeout_s: float) -> Any: ...

    def end(self) -> None: ...

    def hand_back(self, written: torch.Tensor, tag: int) -> Any: ...


@pytest.mark.parametrize("numel", [1, BLOCK_BYTES // 4, 2 * BLOCK_BYTES // 4 + 1])
@pytest.mark.parametrize("shared", [(True, True), (True, False), (False, False)])
def test_every_block_is_added_in_order_and_written_where_that_is_the_peers(
    numel: int, shared: tuple[bool, bool]
) -> None:
    part = torch.full((numel,), -1e8)
    rows, loans = [torch.full((numel,), value) for value in (1e8, 1.0)], [*map(Lent, shared)]
    receives = [
        BoundReceive(peer, 7, part, reduce=True, direct=False, crossing=False, returning=True)
        for peer in (1, 2)
    ]
    assert add_up([*map(Returning, receives, rows, loans)]) is part
    assert part.tolist() == [1.0] * numel
    for row, loan, before in zip(rows, loans, (1e8, 1.0), strict=True):
        assert row.tolist() == [1.0 if loan.is_the_peers else before] * numel
