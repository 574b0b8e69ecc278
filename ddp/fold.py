"""The independent fold: what an all-reduce must return, from its mathematics alone.

For each chunk the explicit left-to-right sum in the order the algorithm implies, written without
schedules, so that a fault in a schedule or in what runs it cannot hide here too. Cuts come from
torch's own `tensor_split`. Every rank ends with the tensor returned; buffers are `buffers[rank]`,
1-D, and each of the segments is reduced by itself.
"""

import random
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor


def visit(node_of: Sequence[int], order: str, seed: int = 0) -> list[int]:
    """The ranks as a ring goes: `contiguous` node after node, `interleaved` the first rank of each
    node, then the second of each, ...; otherwise by a random number for each rank.
    """
    numbers = random.Random(seed)
    places: dict[str, list[Any]] = {
        "contiguous": list(node_of),
        "interleaved": [(node_of[:rank].count(node), node) for rank, node in enumerate(node_of)],
        "shuffled": [numbers.random() for _ in node_of],
    }
    return sorted(range(len(node_of)), key=places[order].__getitem__)


def fold_ring(buffers: Sequence[Tensor], order: Sequence[int], segments: int = 1) -> Tensor:
    """Chunk c of N is summed along the ring, beginning with the rank at position c."""
    num_ranks = len(order)
    sums = []
    for parts in zip(*(buffer.tensor_split(segments) for buffer in buffers), strict=True):
        for chunk in range(num_ranks):
            route = [order[(chunk + hop) % num_ranks] for hop in range(num_ranks)]
            sums.append(reduce(torch.add, [parts[r].tensor_split(num_ranks)[chunk] for r in route]))
    return torch.cat(sums)


def fold_hierarchical(
    buffers: Sequence[Tensor], groups: Sequence[Sequence[int]], segments: int = 1
) -> Tensor:
    """`groups[node]` are its ranks. With K the largest node and M nodes there are K shards of M
    chunks. A node of n sums shard j from its member j mod n onwards and round; the nodes' sums of
    its chunk c are then added node after node, beginning with node c.
    """
    num_nodes, num_shards = len(groups), max(len(group) for group in groups)
    sums = []
    for parts in zip(*(buffer.tensor_split(segments) for buffer in buffers), strict=True):
        cuts = [part.tensor_split(num_shards * num_nodes) for part in parts]
        for shard in range(num_shards):
            members = [[*g[shard % len(g) :], *g[: shard % len(g)]] for g in groups]
            for chunk in range(num_nodes):
                cell = shard * num_nodes + chunk
                inside = [reduce(torch.add, [cuts[r][cell] for r in ranks]) for ranks in members]
                sums.append(reduce(torch.add, inside[chunk:] + inside[:chunk]))
    return torch.cat(sums)


def fold_hierarchical_leader(
    buffers: Sequence[Tensor], groups: Sequence[Sequence[int]], segments: int = 1
) -> Tensor:
    """Each node's sum, in the order of its ranks; then chunk c of M, node by node from node c."""
    num_nodes = len(groups)
    nodes = [reduce(torch.add, [buffers[rank] for rank in group]) for group in groups]
    sums = []
    for parts in zip(*(node.tensor_split(segments) for node in nodes), strict=True):
        cuts = [part.tensor_split(num_nodes) for part in parts]
        for chunk in range(num_nodes):
            route = [(chunk + hop) % num_nodes for hop in range(num_nodes)]
            sums.append(reduce(torch.add, [cuts[node][chunk] for node in route]))
    return torch.cat(sums)


def fold_halving_doubling(
    buffers: Sequence[Tensor], order: Sequence[int], segments: int = 1
) -> Tensor:
    """Chunk c of N ends at the place whose bits, the lowest first, spell c. Its sum is a tree: what
    that place had, plus what its neighbour had; that, plus the same of the two 2 places away; ...
    """
    num_ranks = len(order)
    num_bits = (num_ranks - 1).bit_length()
    sums = []
    for parts in zip(*(buffer.tensor_split(segments) for buffer in buffers), strict=True):
        for chunk in range(num_ranks):
            cuts = [parts[rank].tensor_split(num_ranks)[chunk] for rank in order]
            place = sum((chunk >> num_bits - 1 - bit & 1) << bit for bit in range(num_bits))
            for bit in range(num_bits):
                cuts = [cuts[at] + cuts[at ^ 1 << bit] for at in range(num_ranks)]
            sums.append(cuts[place])
    return torch.cat(sums)


def fold_parameter_server(buffers: Sequence[Tensor]) -> Tensor:
    """Rank 0 adds the others to its own, in the order of ranks; segments change nothing in that."""
    return reduce(torch.add, buffers)
