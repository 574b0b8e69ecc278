"""Schedule: every rule is checked as a stage is drawn; chunks tile the buffer."""

import pytest
import torch

from ddp.errors import ScheduleError
from ddp.schedule import Schedule, Transfer, chunk_bounds


def schedule_of(*stages):
    return Schedule(3, 2, "made-up", lambda: stages)


def test_a_valid_schedule_yields_its_stages_each_time_it_is_drawn():
    stages = ((Transfer(0, 1, 0, True), Transfer(1, 0, 1, True)), (Transfer(2, 0, 0, False),))
    schedule = schedule_of(*stages)

    assert tuple(schedule) == stages
    assert tuple(schedule) == stages


@pytest.mark.parametrize(
    ("stage", "rule"),
    [
        ((), "stage 1 is empty"),
        ((Transfer(3, 0, 0, True),), "ranks go from 0 to 2"),
        ((Transfer(-1, 0, 0, True),), "ranks go from 0 to 2"),
        ((Transfer(0, 3, 0, True),), "ranks go from 0 to 2"),
        ((Transfer(0, -1, 0, True),), "ranks go from 0 to 2"),
        ((Transfer(0, 1, 2, True),), "chunks go from 0 to 1"),
        ((Transfer(0, 1, -1, True),), "chunks go from 0 to 1"),
        ((Transfer(1, 1, 0, True),), "does not send to itself"),
        ((Transfer(0, 1, 0, False), Transfer(2, 1, 0, False)), "overwrites a .* once"),
        ((Transfer(0, 1, 0, True), Transfer(2, 1, 0, False)), "overwrites a .* once"),
        ((Transfer(0, 1, 0, False), Transfer(2, 1, 0, True)), "overwrites a .* once"),
    ],
)
def test_a_broken_rule_is_raised_with_schedule_stage_and_transfer(stage, rule):
    schedule = schedule_of((Transfer(0, 1, 0, True),), stage)

    with pytest.raises(ScheduleError, match=rule) as caught:
        tuple(schedule)

    assert "made-up: stage 1" in str(caught.value)
    assert not stage or str(stage[-1]) in str(caught.value)


def test_a_stage_may_add_to_a_chunk_more_than_once():
    stage = (Transfer(0, 1, 0, True), Transfer(2, 1, 0, True), Transfer(0, 1, 0, True))
    for stages in ((stage,), ((*stage, Transfer(1, 2, 0, False)),)):
        assert tuple(schedule_of(*stages)) == stages


def test_stages_are_drawn_lazily():
    drawn = []

    def stages():
        for chunk in (0, 1):
            drawn.append(chunk)
            yield (Transfer(0, 1, chunk, True),)

    iterator = iter(Schedule(2, 2, "lazy", stages))
    next(iterator)

    assert drawn == [0]


@pytest.mark.parametrize(("num_ranks", "num_chunks"), [(0, 1), (1, 0), (-1, 1)])
def test_a_schedule_needs_a_rank_and_a_chunk(num_ranks, num_chunks):
    with pytest.raises(ScheduleError, match="at least one of each"):
        Schedule(num_ranks, num_chunks, "empty", tuple)


@pytest.mark.parametrize("num_chunks", range(1, 10))
@pytest.mark.parametrize("numel", [0, 1, 2, 7, 8, 9, 10, 97, 1000])
def test_chunks_are_torch_tensor_split(numel, num_chunks):
    bounds = [chunk_bounds(numel, num_chunks, chunk) for chunk in range(num_chunks)]

    buffer = torch.arange(numel)
    chunks = [buffer[start:end].tolist() for start, end in bounds]
    assert chunks == [chunk.tolist() for chunk in buffer.tensor_split(num_chunks)]
