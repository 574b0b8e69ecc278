"""Replay: what a schedule means, on data written out by hand; and the words of a failed proof."""

import pytest
import torch

from ddp.errors import ScheduleError, UsageError
from ddp.replay import prove, replay
from ddp.schedule import Schedule, Transfer

ADD, COPY = True, False


def schedule_of(*stages, num_ranks=2, num_chunks=1):
    return Schedule(num_ranks, num_chunks, "made-up", lambda: stages)


def ints(*values):
    return torch.tensor(values)


def test_a_stage_reads_every_source_before_it_writes():
    swap = schedule_of((Transfer(0, 1, 0, COPY), Transfer(1, 0, 0, COPY)))

    first, second = replay(swap, [ints(1, 2), ints(30, 40)])

    assert first.tolist() == [30, 40]
    assert second.tolist() == [1, 2]


def test_stages_follow_one_another():
    around = schedule_of((Transfer(0, 1, 0, ADD),), (Transfer(1, 0, 0, COPY),))

    assert [r.tolist() for r in replay(around, [ints(1), ints(20)])] == [[21], [21]]


def test_a_transfer_touches_its_chunk_alone_in_every_segment():
    add_last_half = schedule_of((Transfer(0, 1, 1, ADD),), num_chunks=2)
    buffers = [ints(1, 2, 3, 4, 5, 6, 7), ints(10, 20, 30, 40, 50, 60, 70)]

    whole = replay(add_last_half, buffers)[1]  # chunks: 1..4 and 5..7
    in_two = replay(add_last_half, buffers, segments=2)[1]  # 1 2, 3 4 and 5 6, 7

    assert whole.tolist() == [10, 20, 30, 40, 55, 66, 77]
    assert in_two.tolist() == [10, 20, 33, 44, 50, 60, 77]


def test_the_buffers_given_are_left_alone_and_results_share_no_memory():
    buffers = [ints(1, 2), ints(3, 4)]
    copy = schedule_of((Transfer(0, 1, 0, COPY),))

    results = replay(copy, buffers)
    results[0].zero_()

    assert [buffer.tolist() for buffer in buffers] == [[1, 2], [3, 4]]
    assert results[1].tolist() == [1, 2]


def test_sums_are_made_in_the_dtype_of_the_buffers():
    chain = schedule_of((Transfer(0, 2, 0, ADD),), (Transfer(1, 2, 0, ADD),), num_ranks=3)
    small = torch.tensor([1.0], dtype=torch.bfloat16)
    large = torch.tensor([256.0], dtype=torch.bfloat16)

    # 256 + 1 rounds to 256 in bfloat16, twice; summed in float32 it would be 258
    assert replay(chain, [small, small, large])[2].tolist() == [256.0]


@pytest.mark.parametrize(
    ("buffers", "segments", "rule"),
    [
        ([ints(1)], 1, "1 buffers for the 2 ranks"),
        ([ints(1), ints(1, 2)], 1, "must be 1-D and alike"),
        ([ints(1), torch.tensor([1.0])], 1, "must be 1-D and alike"),
        ([ints(1).reshape(1, 1)] * 2, 1, "must be 1-D and alike"),
        ([ints(1), ints(1)], 0, "at least one"),
    ],
)
def test_buffers_that_cannot_be_reduced_are_refused(buffers, segments, rule):
    with pytest.raises(UsageError, match=rule):
        replay(schedule_of(), buffers, segments)


def test_a_part_that_is_missing_is_named():
    one_way = schedule_of((Transfer(0, 1, 0, ADD),))

    with pytest.raises(ScheduleError, match="rank 0 ends with chunk 0 holding rank 1 0 times"):
        prove(one_way)


def test_a_part_that_is_counted_twice_is_named():
    both = (Transfer(0, 1, 0, ADD), Transfer(1, 0, 0, ADD))

    prove(schedule_of(both))
    with pytest.raises(
        ScheduleError, match="rank 0 ends with chunk 0 holding rank 0 2 times, rank 1 2 times"
    ):
        prove(schedule_of(both, both))


def test_parts_that_only_balance_in_number_are_no_proof():
    # all-ones data would end with 2 everywhere
    doubled = schedule_of((Transfer(0, 1, 0, COPY),), (Transfer(0, 1, 0, ADD),))
    back = schedule_of(*doubled, (Transfer(1, 0, 0, COPY),))

    ones = [torch.ones(1, dtype=torch.int64)] * 2
    assert [result.tolist() for result in replay(back, ones)] == [[2], [2]]
    with pytest.raises(ScheduleError, match="rank 0 2 times, rank 1 0 times"):
        prove(back)
