"""A claim: what is asked of every rank, and how their answers are judged.

Owns the list of all claims about the wrapper. What a claim does is in the modules it comes from.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from jobs.proof.lines import Line
from jobs.proof.ranks import Answers, Question


@dataclass(frozen=True)
class Claim:
    """`judge` gets the answers of all ranks and returns the first difference, or None."""

    name: str
    says: str
    question: Question
    judge: Callable[[Sequence[Any]], str | None]

    def line(self, answers: Answers) -> Line:
        with one_thread():
            difference = answers.problem or self.judge(answers.by_rank)
        return Line(self.name, self.says, difference)


def all_claims() -> tuple[Claim, ...]:
    """Every claim about the wrapper, in the order of its life; each algorithm's at the end."""
    from jobs.proof import exact, flags, refusals, training

    about = (*exact.CLAIMS, *training.CLAIMS, *flags.CLAIMS, *refusals.CLAIMS)
    return (*about, *training.of_algorithms())


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, sums are made as a rank makes them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
