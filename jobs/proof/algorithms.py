"""`proof algorithms`, whole: a line for each algorithm, from all its cases."""

from collections.abc import Generator, Sequence
from functools import partial

from jobs.proof import between, grid
from jobs.proof.claims import one_thread
from jobs.proof.grid import Result
from jobs.proof.lines import Line, first
from jobs.proof.ranks import Answers, ask
from jobs.proof.variants import Variant, variants

WORDS = {
    "bytes": "exact sums, the bytes of the fold, nothing sent in vain",
    "exact_integers": "exact sums",
    "tolerance": "exact sums",
    "none": "nothing is sent",
}


def prove_algorithms(
    own: str | None = None,
) -> Generator[tuple[Variant, Sequence[Result], Line]]:
    """Each variant with all its cases, and the line that they come to; `own` as in `variants`."""
    every = list(variants(own))
    questions = [partial(between.ask_variant, it.algorithm.name, it.ring_order) for it in every]
    with ask(questions) as answers:
        for variant in every:
            with one_thread():
                memory = list(grid.in_memory(variant)) if variant.algorithm.build else []
            yield _concluded(variant, memory, next(answers))


def _concluded(
    variant: Variant, memory: Sequence[Result], asked: Answers
) -> tuple[Variant, Sequence[Result], Line]:
    real = between.results(asked.by_rank) if not asked.problem else []
    difference = first(_difference(each) for each in (*memory, *real)) or asked.problem
    if variant.algorithm.build and not memory:
        difference = difference or "it refuses every cluster of the grid"
    counts = [f"{len(real)} between 4 processes"]
    if memory:
        counts.insert(0, f"{len(memory):,} cases in memory")
    says = f"{WORDS[variant.algorithm.proof]}: {', '.join(counts)}"
    return variant, (*memory, *real), Line(variant.name, says, difference)


def case_line(variant: Variant, result: Result) -> Line:
    """One case of the grid as a line of its own."""
    name = f"{variant.name}: {result.case.words()}, {result.where}"
    return Line(name, WORDS[variant.algorithm.proof], result.difference)


def _difference(result: Result) -> str | None:
    if result.difference is None:
        return None
    return f"{result.case.words()}, {result.where}: {result.difference}"
