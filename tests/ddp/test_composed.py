"""The composed all-reduce, over gloo between processes: exact sums, placements, bytes, refusals."""

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddp.composed import BackendReduce, ComposedHierarchical
from ddp.cost import payload_bytes, traffic
from ddp.errors import TransportError, UsageError
from ddp.fabric import Fabric
from ddp.native import MakeGroup, Native, gloo_groups
from ddp.plan import ReductionPlan
from tests.ddp.conftest import Ranks

PLACEMENTS = {
    "two nodes": (0, 0, 1, 1),
    "scattered": (1, 0, 0, 1),
    "alternating": (0, 1, 0, 1),
    "three nodes": (2, 0, 1, 1, 0, 2),
    "one node": (0, 0, 0),
    "lone ranks": (0, 1, 2),
    "one rank": (0,),
}
NUMELS = (0, 1, 2, 3, 4, 7, 12, 13, 101)


def make_groups(rank: int) -> MakeGroup:
    assert dist.group.WORLD is not None
    return gloo_groups(dist.group.WORLD.get_group_store(), rank, 20.0)


def values(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(numel).to(dtype) * (rank + 2) + rank * rank


@pytest.mark.parametrize("node_of", PLACEMENTS.values(), ids=PLACEMENTS)
def test_every_length_is_summed_exactly_on_every_placement(
    ranks: Ranks, node_of: tuple[int, ...]
) -> None:
    def body(rank: int) -> list[list[float]]:
        composed = ComposedHierarchical(Fabric(node_of), rank, make_groups(rank))
        sums = []
        for bucket, numel in enumerate(NUMELS):
            buffer = values(rank, numel)
            composed.all_reduce(buffer, 1, bucket)
            sums.append(buffer.tolist())
        composed.close()
        return sums

    wanted = [
        sum((values(rank, numel) for rank in range(len(node_of))), torch.zeros(numel)).tolist()
        for numel in NUMELS
    ]
    assert ranks.run(len(node_of), body) == [wanted] * len(node_of)


def test_padding_never_leaks_from_a_longer_buffer_or_another_dtype(ranks: Ranks) -> None:
    def body(rank: int) -> list[list[complex]]:
        composed = ComposedHierarchical(Fabric((0, 0, 0, 1, 1, 1)), rank, make_groups(rank))
        sums = []
        for numel, dtype in ((101, torch.float32), (5, torch.float32), (5, torch.float64)):
            buffer = values(rank, numel, dtype)
            large = 1 << 40 if dtype == torch.float64 else 0
            buffer += large
            composed.all_reduce(buffer, 1, 0)
            sums.append((buffer - 6 * large).tolist())
        pair = torch.complex(values(rank, 7), -values(rank, 7))
        composed.all_reduce(pair, 1, 0)
        return [*sums, pair.tolist()]

    def total(numel: int) -> list[int]:
        return [sum(n * (rank + 2) + rank * rank for rank in range(6)) for n in range(numel)]

    seen = ranks.run(6, body)
    assert seen == [[total(101), total(5), total(5), [complex(n, -n) for n in total(7)]]] * 6


class Recording:
    """A group that says what it was asked for, and sums nothing."""

    def __init__(self, said: list[str], name: str, members: Sequence[int]) -> None:
        self._said, self._name = said, f"{name} {list(members)}"
        self.fails = False

    def all_reduce(self, tensor: Tensor) -> None:
        self._say("all_reduce", tensor)

    def reduce_scatter(self, shard: Tensor, whole: Tensor) -> None:
        self._say("reduce_scatter", shard, whole)

    def all_gather(self, whole: Tensor, shard: Tensor) -> None:
        self._say("all_gather", shard, whole)

    def broadcast(self, tensor: Tensor) -> None:
        self._say("broadcast", tensor)

    def close(self) -> None:
        self._say("close")

    def _say(self, what: str, *tensors: Tensor) -> None:
        if self.fails:
            raise TransportError("gone")
        self._said.append(f"{what} {self._name} {[tensor.numel() for tensor in tensors]}")


def recorded(node_of: tuple[int, ...], rank: int) -> tuple[list[str], ComposedHierarchical]:
    said: list[str] = []

    def make(name: str, members: Sequence[int]) -> Native:
        said.append(f"make {name} {list(members)}")
        return Recording(said, name, members)

    return said, ComposedHierarchical(Fabric(node_of), rank, make)


def test_a_group_is_made_by_its_members_alone_and_used_in_one_order() -> None:
    said, composed = recorded((1, 0, 0, 1), 3)
    composed.all_reduce(torch.ones(5), 1, 0)
    composed.close()
    inside, across = "inside/0 [0, 3]", "across/1 [2, 3]"
    assert said == [
        f"make {inside}",
        f"make {across}",
        f"reduce_scatter {inside} [3, 6]",
        f"all_reduce {across} [3]",
        f"all_gather {inside} [3, 6]",
        f"close {inside} []",
        f"close {across} []",
    ]


def test_an_empty_stage_is_left_out_and_an_empty_buffer_sends_nothing() -> None:
    said, composed = recorded((0, 0), 1)
    composed.all_reduce(torch.ones(2), 1, 0)
    assert [line.split()[0] for line in said] == ["make", "reduce_scatter", "all_gather"]
    said, composed = recorded((0, 1), 1)
    composed.all_reduce(torch.ones(3), 1, 0)
    assert [line.split()[0] for line in said] == ["make", "all_reduce"]
    before = list(said)
    assert composed.all_reduce(torch.ones(0), 1, 0).inter_node_bytes == 0
    assert said == before


@pytest.mark.parametrize("node_of", [(0, 0, 1, 1), (2, 0, 1, 1, 0, 2), (0, 0), (0, 1)])
def test_bytes_are_those_of_the_schedule(node_of: tuple[int, ...]) -> None:
    fabric, numel = Fabric(node_of), 12 * len(node_of)
    schedule = ReductionPlan("hierarchical", "contiguous", 0, node_of, ()).schedule()
    assert schedule is not None
    seen = [
        recorded(node_of, rank)[1].all_reduce(torch.ones(numel), 1, 0)
        for rank in range(len(node_of))
    ]
    for node, out_bytes in payload_bytes(schedule, fabric, numel, 4).items():
        of_node = [each for each, place in zip(seen, node_of, strict=True) if place == node]
        assert sum(each.inter_node_bytes or 0 for each in of_node) == out_bytes
        inside = traffic(schedule, fabric, numel, 4)[node].intra_bytes
        assert sum(each.intra_node_bytes or 0 for each in of_node) == inside


def test_unequal_nodes_are_refused_with_both_sizes_and_the_fix() -> None:
    with pytest.raises(UsageError, match=r"node 0 has 1 ranks and node 1 has 2.*'native'"):
        recorded((1, 0, 1), 0)


def test_an_error_names_bucket_and_stage() -> None:
    said, composed = recorded((0, 0, 1, 1), 0)
    composed._across.fails = True  # type: ignore[union-attr]
    with pytest.raises(TransportError, match="bucket 7, all_reduce between nodes: gone"):
        composed.all_reduce(torch.ones(4), 1, 7)
    assert "all_gather" not in " ".join(said)


def test_native_is_one_all_reduce_of_everybody(ranks: Ranks) -> None:
    def body(rank: int) -> list[float]:
        native = BackendReduce(make_groups(rank)("everybody", range(3)))
        buffer = values(rank, 5)
        assert native.all_reduce(buffer, 1, 0).inter_node_bytes is None
        return buffer.tolist()

    wanted = [sum(n * (rank + 2) + rank * rank for rank in range(3)) for n in range(5)]
    assert ranks.run(3, body) == [wanted] * 3


def test_a_closed_group_says_so(ranks: Ranks) -> None:
    def body(rank: int) -> str:
        group = make_groups(rank)("everybody", range(2))
        dist.barrier()  # the other one has connected
        group.close()
        group.close()
        with pytest.raises(TransportError) as caught:
            group.broadcast(torch.ones(1))
        return str(caught.value)

    assert ranks.run(2, body) == ["the connections to all peers are closed"] * 2
