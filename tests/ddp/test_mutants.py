"""Mutants: one transfer or stage of a small schedule is changed, everywhere and in every way.

Each is caught by the proof; or by the bytes of the fold, having shown that it adds up in another
order; or it is shown to add up the same, term by term, and then no byte differs.
"""

from collections import Counter
from dataclasses import replace

import pytest

from ddp.errors import ScheduleError
from ddp.fabric import Fabric
from ddp.replay import prove, replay
from ddp.schedule import Transfer
from tests.ddp.variants import Variant, random_floats, same_bytes

SMALL = {
    "ring of 2": (Fabric((0, 1)), Variant("ring")),
    "ring of 3": (Fabric((0, 0, 1)), Variant("ring")),
    "interleaved ring of 4": (Fabric((0, 0, 1, 1)), Variant("ring", "interleaved")),
    "shuffled ring of 3": (Fabric((0, 0, 1)), Variant("ring", "shuffled")),
    "hierarchy of 2 and 2": (Fabric((0, 1, 0, 1)), Variant("hierarchical")),
    "hierarchy of 1 and 3": (Fabric((0, 1, 1, 1)), Variant("hierarchical")),
    "leaders of 2 and 2": (Fabric((0, 1, 0, 1)), Variant("hierarchical_leader")),
    "leaders of 1 and 3": (Fabric((0, 1, 1, 1)), Variant("hierarchical_leader")),
    "halves and quarters of 4": (Fabric((0, 0, 1, 1)), Variant("halving_doubling")),
    "star of 4": (Fabric((0, 1, 0, 1)), Variant("parameter_server")),
}


def mutants(schedule):
    """(what was done, to which transfer, mutant) for every single change."""

    def with_stages(changed):
        return replace(schedule, stages=lambda: changed)

    stages = list(schedule)
    for s, stage in enumerate(stages):
        yield "drop stage", stage[0], with_stages([*stages[:s], *stages[s + 1 :]])
        yield "reverse", stage[0], with_stages([*stages[:s], stage[::-1], *stages[s + 1 :]])
        if s:
            swapped = [*stages[: s - 1], stage, stages[s - 1], *stages[s + 1 :]]
            yield "swap stages", stage[0], with_stages(swapped)
        for t, transfer in enumerate(stage):
            before, after = stage[:t], stage[t + 1 :]
            changes = [
                ("drop", [before + after] if before + after else []),
                ("double", [(*stage, transfer)]),
                ("repeat", [stage, (transfer,)]),
                *((what, [(*before, v, *after)]) for what, v in variations(schedule, transfer)),
            ]
            for what, changed in changes:
                yield what, transfer, with_stages([*stages[:s], *changed, *stages[s + 1 :]])


def variations(schedule, transfer):
    src, dst, chunk, reduce = transfer.src, transfer.dst, transfer.chunk, transfer.reduce
    yield "flip", Transfer(src, dst, chunk, not reduce)
    for rank in set(range(schedule.num_ranks)) - {src}:
        yield "src", Transfer(rank, dst, chunk, reduce)
    for rank in set(range(schedule.num_ranks)) - {dst}:
        yield "dst", Transfer(src, rank, chunk, reduce)
    for other in set(range(schedule.num_chunks)) - {chunk}:
        yield "chunk", Transfer(src, dst, other, reduce)


def counts_every_rank_once(schedule):
    """A second interpreter, in plain integers: decimal places count how often a rank is in."""
    place = 10**6
    cells = {
        (rank, chunk): place**rank
        for rank in range(schedule.num_ranks)
        for chunk in range(schedule.num_chunks)
    }
    for stage in schedule.stages():
        held = dict(cells)
        for transfer in stage:
            own = cells[transfer.dst, transfer.chunk] if transfer.reduce else 0
            cells[transfer.dst, transfer.chunk] = own + held[transfer.src, transfer.chunk]
    return set(cells.values()) == {sum(place**rank for rank in range(schedule.num_ranks))}


def sums(schedule):
    """How each cell is added up: a tree of ranks. Sides may be swapped, which changes no byte."""
    cells = {
        (rank, chunk): rank
        for rank in range(schedule.num_ranks)
        for chunk in range(schedule.num_chunks)
    }
    for stage in schedule.stages():
        held = dict(cells)
        for transfer in stage:
            to, came = (transfer.dst, transfer.chunk), held[transfer.src, transfer.chunk]
            cells[to] = tuple(sorted((cells[to], came), key=repr)) if transfer.reduce else came
    return cells


def is_refused(schedule):
    try:
        tuple(schedule)
    except ScheduleError:
        return True
    return False


@pytest.mark.parametrize("name", SMALL)
def test_every_mutant_is_caught_unless_it_changes_no_byte(name):
    fabric, variant = SMALL[name]
    schedule = variant.build(fabric)
    floats = random_floats(schedule.num_ranks, 2003)
    expected, wanted = variant.fold(fabric, floats, 1), sums(schedule)
    harmless = set()
    num_caught = Counter()
    for what, transfer, mutant in mutants(schedule):
        if is_refused(mutant) or not counts_every_rank_once(mutant):
            with pytest.raises(ScheduleError):
                prove(mutant)
            num_caught["proof"] += 1
            continue
        prove(mutant)  # an all-reduce still, so it must sum in another order or change nothing
        same = all(same_bytes(result, expected) for result in replay(mutant, floats))
        assert same == (sums(mutant) == wanted), (what, transfer)
        if same:
            harmless.add((what, transfer.reduce))
        else:
            num_caught["fold"] += 1

    # a complete chunk may be copied twice, or from another rank that already has it; a stage reads
    # all before it writes, in whatever order
    copies = {("repeat", False), ("src", False)}
    assert harmless <= {*copies, ("reverse", True), ("reverse", False)}
    assert num_caught["proof"] > num_caught["fold"]
