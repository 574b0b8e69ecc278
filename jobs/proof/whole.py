"""`proof`, whole: the lesson's table, then a line for every claim, as ranks answer."""

from collections.abc import Generator, Iterator

from jobs.proof import lesson
from jobs.proof.claims import all_claims, one_thread
from jobs.proof.lines import Line
from jobs.proof.ranks import Answers, ask


def prove() -> Generator[lesson.Table | Line]:
    """The table first, where there is one; the line of what it comes to; all other lines."""
    claims = all_claims()
    questions = [lesson.train_on_rank, *(claim.question for claim in claims)]
    with ask(questions) as answers:
        yield from _the_lesson(next(answers))
        for claim in claims:
            yield claim.line(next(answers))


def _the_lesson(trained: Answers) -> Iterator[lesson.Table | Line]:
    if trained.problem:
        yield Line("training", "the lesson's table", trained.problem)
        return
    with one_thread():
        table = lesson.judge(trained.by_rank)
        large = lesson.large_batch_line(table)
    yield table
    yield table.line()
    yield large
