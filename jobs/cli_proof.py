"""The verb proof: that gradients are what they should be, on this machine, without a lab."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from jobs.cli_lab import json_option

if TYPE_CHECKING:
    from jobs.proof.lines import Line

ALGORITHMS = "algorithms"
FAILED = 1

Tell = Callable[..., None]
"""Shows what a function makes of values and the width of the screen; under --json, nothing."""


@click.command()
@click.argument("what", required=False, type=click.Choice([ALGORITHMS]))
@click.option("--all", "every", is_flag=True, help="With algorithms: a line for each case.")
@click.option("--algorithm", help="Also one of your own: my.py:build, my_pkg.module:build.")
@click.option("--hook", help="Also a communication hook: my.py:fn, my_pkg.module:fn.")
@json_option
def proof(
    what: str | None, every: bool, algorithm: str | None, hook: str | None, as_json: bool
) -> int:
    """Prove the wrapper against one process that trains on all data; or every of its algorithms."""
    from jobs.proof.lines import to_json

    own = _own(what, every, algorithm, hook)
    with _telling(as_json) as tell:
        lines = _algorithms(every, own, tell) if what == ALGORITHMS else _wrapper(tell)
    answer = to_json(lines)
    if as_json:
        click.echo(json.dumps(answer))
    return 0 if answer["ok"] else FAILED


@dataclass(frozen=True)
class Own:
    """What is proven besides all of ours; places that hold in every process."""

    algorithm: str | None
    hook: str | None


def _own(what: str | None, every: bool, algorithm: str | None, hook: str | None) -> Own:
    """Raises CommandLineError or JobSpecError for what cannot be proven."""
    from jobs.verbs import CommandLineError

    given = [
        f"--{name}"
        for name, value in (("all", every), ("algorithm", algorithm), ("hook", hook))
        if value
    ]
    if given and what is None:
        raise CommandLineError(
            f"{given[0]} belongs to proof algorithms",
            rule="without that word it has no effect",
            fix=f"ddplab proof algorithms {given[0]}",
        )
    if algorithm is not None and ":" not in algorithm:
        raise CommandLineError(
            f"--algorithm {algorithm}",
            rule="is the place of one of your own, path/to/my.py:build; ours are all proven anyway",
            fix="leave it out",
        )
    from jobs.owncode import look_for

    return Own(
        None if algorithm is None else look_for(algorithm, "algorithm"),
        None if hook is None else look_for(hook, "hook"),
    )


@contextmanager
def _telling(as_json: bool) -> Iterator[Tell]:
    from jobs.report.terminal import output_console, show

    if as_json:
        yield lambda *_: None
        return
    console = output_console()
    waiting = console.status("proving", spinner="line") if console.is_terminal else nullcontext()
    with waiting:
        yield lambda make, *values: show(console, make(*values, console.width))


def _wrapper(tell: Tell) -> "list[Line]":
    from jobs.report import proof_screen

    tell(proof_screen.lesson_header)
    from jobs.proof.lines import Line  # here, so that the first words come at once
    from jobs.proof.whole import prove

    lines: list[Line] = []
    with closing(prove()) as found:
        for each in found:
            if isinstance(each, Line):
                lines.append(each)
                tell(proof_screen.proof_lines, each)
            else:
                tell(proof_screen.table_screen, each)
    following = "make proof algorithms     every algorithm, on a grid of clusters"
    tell(proof_screen.closing, lines, following)
    return lines


def _algorithms(every: bool, own: Own, tell: Tell) -> "list[Line]":
    """With `every`, the lines are the cases."""
    from jobs.report import proof_screen

    tell(proof_screen.algorithms_header)
    from jobs.proof.algorithms import case_line, prove_algorithms

    lines, cases = [], []
    with closing(prove_algorithms(own.algorithm)) as found:
        for variant, results, line in found:
            for result in results if every else ():
                cases.append(case_line(variant, result))
                tell(proof_screen.case_screen, cases[-1])
            lines.append(line)
            tell(proof_screen.proof_lines, line)
    if own.hook is not None:
        from jobs.proof.hooks import prove_hook

        lines.append(prove_hook(own.hook))
        tell(proof_screen.proof_lines, lines[-1])
    following = "make proof algorithms ALL=1     every case" if not every else "make proof"
    tell(proof_screen.closing, lines, following)
    return cases + [each for each in lines if not each.proven] if every else lines
