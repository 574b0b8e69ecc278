"""The ranks of a proof: whatever one of them does, there is an answer, and none is left."""

import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import jobs.proof.ranks
from jobs.proof.ranks import NUM_RANKS, Answers, Question, ask

pytestmark = pytest.mark.usefixtures("forked")


def who(rank: int, num_ranks: int) -> list[int]:
    return [rank, num_ranks, os.getpid()]


def odd(rank: int, _num_ranks: int, *, what: str) -> float:
    """Rank 2 does something else."""
    if rank == 2:
        if what == "raises":
            raise ValueError("two is odd")
        if what == "exits":
            os.write(2, b"first words\nlast words\n")
            os._exit(3)
        if what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return float("nan") if what == "nan" else 0.5


def all_answers(*questions: Question) -> list[Answers]:
    with ask(questions) as answers:
        return list(answers)


def require_none_left(pids: Sequence[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_every_question_is_answered_by_every_rank() -> None:
    first, second = all_answers(who, who)
    assert first.problem is None
    ranks, sizes, pids = zip(*first.by_rank, strict=True)
    assert (ranks, sizes) == ((0, 1, 2, 3), (NUM_RANKS,) * NUM_RANKS)
    assert len({*pids, os.getpid()}) == NUM_RANKS + 1
    assert second == first
    require_none_left(pids)


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("raises", "rank 2: ValueError: two is odd"),
        ("exits", "rank 2 ended without an answer; its last words: last words"),
        ("is killed", "rank 2 was killed by SIGKILL"),
    ],
)
def test_the_rank_that_fails_is_named(what: str, problem: str) -> None:
    before, failed = all_answers(who, partial(odd, what=what))
    assert failed == Answers(problem=problem)
    require_none_left([each[2] for each in before.by_rank])


def test_what_was_raised_does_not_harm_the_next_question() -> None:
    failed, after = all_answers(partial(odd, what="raises"), who)
    assert failed.problem and after.problem is None


def test_a_rank_that_hangs_is_waited_for_no_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs.proof.ranks, "LIMIT_S", 1.0)
    (failed,) = all_answers(partial(odd, what="hangs"))
    assert failed.problem == "no answer of rank 2 within 1 s"


def test_who_asks_no_longer_leaves_no_rank() -> None:
    pids: list[Any] = []
    with pytest.raises(KeyError), ask([who, partial(odd, what="hangs")]) as answers:
        pids += [each[2] for each in next(answers).by_rank]
        raise KeyError
    require_none_left(pids)
