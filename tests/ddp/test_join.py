"""B20: ranks with different numbers of batches end together, or fail at once by name."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tests.ddp.samples import Branches, message, the_one_text, train, wrap


def run_epoch(wrapped: Any, num_batches: int, accumulate: int, done: list[int]) -> None:
    for index in range(num_batches):
        last = (index + 1) % accumulate == 0
        with nullcontext() if last else wrapped.no_sync():
            train(wrapped)
        if last:
            done.append(index)
            with torch.no_grad():
                for parameter in wrapped.parameters():
                    parameter -= 0.1 * parameter.grad
            wrapped.zero_grad()


@pytest.mark.parametrize(
    ("num_batches", "accumulate", "num_steps"),
    [
        ([5, 4], 1, 4),
        ([5, 4, 6], 1, 4),
        ([5, 4], 2, 2),
        ([7, 5, 6], 2, 2),
        ([4, 4], 1, 4),
        ([3, 0], 1, 0),
    ],
)
@pytest.mark.parametrize("overlap", [True, False])
def test_uneven_inputs_end_together(
    ranks: Any, num_batches: list[int], accumulate: int, num_steps: int, overlap: bool
) -> None:
    """The same steps on all ranks, equal parameters, no left-over gradient; then another epoch."""

    def body(rank: int) -> tuple[int, str, int]:
        wrapped = wrap(Branches(), overlap=overlap, timeout_s=30)
        done: list[int] = []
        with wrapped.join():
            run_epoch(wrapped, num_batches[rank], accumulate, done)
        num_done = len(done)
        left = sum(p.grad is not None for p in wrapped.parameters())
        with wrapped.join():
            run_epoch(wrapped, 2, 2, done)
        digest = wrapped.verify_parameters()
        wrapped.close()
        return num_done, digest, left

    values = ranks.run(len(num_batches), body)
    assert len(set(values)) == 1
    assert values[0][0] == num_steps
    assert values[0][2] == 0


def test_uneven_inputs_that_must_not_be_fail_at_once(ranks: Any) -> None:
    num_batches = [4, 3, 5]

    def body(rank: int) -> str:
        wrapped = wrap(Branches(), timeout_s=50)

        def epoch() -> None:
            with wrapped.join(throw_on_early_termination=True):
                run_epoch(wrapped, num_batches[rank], 1, [])

        return message(epoch)

    text = the_one_text(ranks.run(3, body))
    assert "the data of rank 1 ended after 3 reduced batches, and other ranks have more" in text
    assert "drop_last=True" in text


def test_an_exception_inside_stops_all_ranks(ranks: Any) -> None:
    def body(rank: int) -> str:
        wrapped = wrap(Branches(), timeout_s=50)

        def epoch() -> None:
            with wrapped.join():
                train(wrapped)
                if rank == 1:
                    raise OSError("the disk is gone")
                train(wrapped)

        return message(epoch)

    assert the_one_text(ranks.run(2, body)) == (
        "ReductionFailed: rank 1: OSError: the disk is gone"
    )


def test_one_rank_alone_has_nothing_to_wait_for(ranks: Any) -> None:
    def body(_rank: int) -> int:
        wrapped = wrap(nn.Linear(4, 4))
        done = 0
        with wrapped.join():
            for _ in range(3):
                train(wrapped)
                done += 1
        return done

    assert ranks.run(1, body) == [3]
