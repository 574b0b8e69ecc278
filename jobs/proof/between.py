"""The algorithms between real processes: what each rank's buffer holds after an all-reduce."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddp import Fabric, UsageError
from ddp.algorithms import find_algorithm
from jobs.proof.exact import wrap
from jobs.proof.grid import Case, Result, differs, expected, random_floats, same_bytes
from jobs.proof.variants import Variant

PLACEMENTS = ((0, 0, 1, 1), (0, 1, 0, 1), (3, 1, 1, 1), (0, 0, 0, 0), (0, 1, 2, 3))
NUMELS = (0, 1, 3, 4, 5, 1003)
WHERE = "between 4 processes"

Found = list[list[Any]]  # placement, elements, segments, first difference


def ask_variant(algorithm: str, ring_order: str, rank: int, num_ranks: int) -> Found:
    """Every case of one variant, as this rank sees it."""
    variant = Variant(algorithm, find_algorithm(algorithm), ring_order)
    found: Found = []
    for node_of in PLACEMENTS if variant.algorithm.build else PLACEMENTS[:1]:
        if _refuses(variant, Fabric(node_of)):
            continue
        wrapped = wrap(
            nn.Linear(1, 1),
            algorithm=variant.algorithm.name,
            ring_order=variant.ring_order,
            ring_seed=variant.ring_seed,
            fabric=Fabric(node_of),
        )
        for numel in NUMELS:
            case = Case(node_of, numel, 1 + numel % 3)
            buffers = _buffers(variant, num_ranks, numel)
            buffer = buffers[rank].clone()
            wrapped.collective.all_reduce(buffer, case.segments, 0)
            difference = _difference(_wanted(variant, case, buffers, rank), buffer)
            found.append([node_of, numel, case.segments, difference])
        wrapped.close()
    return found


def _refuses(variant: Variant, fabric: Fabric) -> bool:
    try:
        variant.schedule(fabric)
    except UsageError:
        return True
    return False


def results(answers: Sequence[Found]) -> list[Result]:
    """A case counts as one; its difference is that of the first rank that has one."""
    together = []
    for same_case in zip(*answers, strict=True):
        node_of, numel, segments, _ = same_case[0]
        differences = [f"rank {r}: {each[3]}" for r, each in enumerate(same_case) if each[3]]
        case = Case(tuple(node_of), numel, segments)
        together.append(Result(case, WHERE, differences[0] if differences else None))
    return together


def _buffers(variant: Variant, num_ranks: int, numel: int) -> list[Tensor]:
    if variant.algorithm.proof == "bytes":
        return random_floats(num_ranks, numel)
    places = (torch.arange(numel) % 97 + 1).to(torch.float32)
    return [places * 8**rank for rank in range(num_ranks)]  # whole numbers, and so are their sums


def _wanted(variant: Variant, case: Case, buffers: Sequence[Tensor], rank: int) -> Tensor | str:
    if variant.algorithm.proof == "none":
        return buffers[rank]
    wanted = expected(variant, case, buffers)
    return torch.stack(list(buffers)).sum(0) if wanted is None else wanted


def _difference(wanted: Tensor | str, found: Tensor) -> str | None:
    if isinstance(wanted, str):
        return wanted
    return None if same_bytes(found, wanted) else differs(found, wanted)
