"""From a make word to a command: reads what was typed, refuses what is wrong, then becomes it.

Everything a person typed is checked before an environment is built. Does not build it itself.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tools.environment import Choice, ensure, higher
from tools.errors import FrontDoorError
from tools.variables import EXAMPLES
from tools.verbs import FLAGS, VERBS, arguments, help_screen, meaning

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the one verb that make asked for; returns only where nothing is left to become."""
    root = Path.cwd()
    verb = sys.argv[1]
    _end_with_make()
    try:
        given = typed_variables(os.environ.get("DDPLAB_TYPED", ""))
        goals, words = words_apart(os.environ.get("DDPLAB_GOALS", "").split() or [verb])
        check_typed(goals, given, root)
        if verb == "help":
            sys.stdout.write(help_screen(root) + "\n")
            return 0
        takes = VERBS[verb].takes
        given = {name: value for name, value in given.items() if name in takes}
        if verb == "doctor":
            return _doctor(root, given)
        if verb == "base-image":
            from tools.base_image import make_base_image  # only this word needs it

            return make_base_image(root)
        environment = ensure(root, _layer(verb, given), Choice.typed(given))
        if verb == "setup":
            sys.stderr.write("ddplab: .venv is ready.\n")
            sys.stderr.write("  next    make cluster-up && make run JOB=hier\n")
            return 0
        become(environment, verb, given, *words.get(verb, ()))
    except FrontDoorError as problem:
        sys.stderr.write(problem.screen() + "\n")
    except KeyboardInterrupt as stop:
        sys.stderr.write(
            f"\nddplab: stopped by {str(stop) or 'you'}. Nothing half-built was kept.\n"
        )
        return 130
    return 1


def _layer(verb: str, given: dict[str, str]) -> str:
    """The environment it needs: Ray is installed for whoever asks for it, and no sooner."""
    layer = VERBS[verb].layer
    return higher(layer, "ray") if given.get("BACKEND") == "ray" else layer


def _end_with_make() -> None:
    """When make is killed, this process and the command it becomes are told to end (SIGTERM)."""
    with suppress(ImportError):  # a Python built without it
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stopped)


def _stopped(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _doctor(root: Path, given: dict[str, str]) -> int:
    """Never builds an environment: it also answers where none can be built."""
    from tools.doctor import alone, look  # only this word needs it

    found = look(root)
    if found.environment is not None:
        become(found.environment, "doctor", given, found.option())
    return alone(root, found.checks, given.get("CLUSTER", "2x2"), given.get("PRIVILEGE", "none"))


def become(environment: Path, verb: str, given: dict[str, str], *more: str) -> NoReturn:
    """Replace this process by the command; make's own variables do not go along."""
    python = str(environment / "bin" / "python")
    if VERBS[verb].module:
        words = [python, "-m", VERBS[verb].module, *arguments(verb, given)]
    else:
        program, *rest = arguments(verb, given)
        words = [python, str(environment / "bin" / program), *rest, *more]
    makes_own = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DDPLAB_GOALS", "DDPLAB_TYPED")
    kept = {name: value for name, value in os.environ.items() if name not in makes_own}
    sys.stdout.flush()
    os.execve(python, words, kept)


def typed_variables(overrides: str) -> dict[str, str]:
    """NAME=value as typed, out of MAKEOVERRIDES: the one place where make keeps them unexpanded.

    There a blank or backslash has a backslash before it, and a $ is doubled.
    """
    words = [""]
    letters = iter(overrides)
    for letter in letters:
        if letter in " \t":
            words.append("")
        elif letter in "\\$":
            words[-1] += next(letters, "")
        else:
            words[-1] += letter
    typed: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            typed[name.rstrip(":+?!")] = value
    return typed


def words_apart(goals: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The verbs, and the words of each: what follows a verb that takes it is a word of its own."""
    verbs: list[str] = []
    words: dict[str, list[str]] = {}
    for goal in goals:
        if verbs and verbs[-1] in VERBS and goal in VERBS[verbs[-1]].words:
            words.setdefault(verbs[-1], []).append(goal)
        else:
            verbs.append(goal)
    return verbs, words


def check_typed(goals: list[str], given: dict[str, str], root: Path) -> None:
    """Raise FrontDoorError for the first word or variable that cannot be meant."""
    for goal in goals:
        if goal not in VERBS:
            raise _unknown_word(goal, given)
    takes = [name for goal in goals for name in VERBS[goal].takes]
    for name, value in given.items():
        if name not in takes:
            raise _unknown_variable(goals, name, value, takes)
        if not value.strip() and name != "SET":
            raise FrontDoorError(
                f"{name} is empty.",
                seen=f"{name}={_quoted(value)}",
                rule="a variable that is typed has a value",
                fix=f"leave {name} out, or give it a value",
            )
        if name in FLAGS and value != "1":
            raise FrontDoorError(
                f"{name} is 1 or is left out.",
                seen=f"{name}={_quoted(value)}",
                rule=f"{name}: {meaning(name, root)}",
                fix=f"{name}=1",
            )
    for goal in goals:
        one_of = VERBS[goal].needs_one_of
        missing = [name for name in VERBS[goal].needs if name not in given]
        if one_of and not set(one_of) & set(given):
            missing.append(one_of[0])
        for name in missing:
            raise FrontDoorError(
                f"{goal} needs {' or '.join(one_of) if name in one_of else name}.",
                seen=f"make {' '.join(goals)}, without {name}",
                rule=f"{name}: {meaning(name, root)}",
                fix=f"make {' '.join(goals)} {name}={EXAMPLES[name]}",
            )


def _unknown_word(goal: str, given: dict[str, str]) -> FrontDoorError:
    nearest = _nearest(goal, list(VERBS))
    owners = [verb for verb in VERBS if goal in VERBS[verb].words]
    if owners:
        fix = f"make {owners[0]} {goal}"
    elif nearest:
        kept = [f"{n}={_quoted(v)}" for n, v in given.items() if n in VERBS[nearest].takes]
        fix = " ".join(["make", nearest, *kept])
    else:
        fix = "make help"
    return FrontDoorError(
        f'make knows no word "{goal}".',
        seen=" ".join(["make", _quoted(goal), *(f"{n}={_quoted(v)}" for n, v in given.items())]),
        rule="the words are " + " ".join(VERBS),
        fix=fix,
    )


def _unknown_variable(goals: list[str], name: str, value: str, takes: list[str]) -> FrontDoorError:
    words = " ".join(goals)
    nearest = _nearest(name.upper(), takes)
    owners = [verb for verb in VERBS if name in VERBS[verb].takes]
    if nearest and not owners:
        fix = f"make {words} {nearest}={_quoted(value)}"
    elif owners:
        fix = f"{name} belongs to " + ", ".join(f"make {verb}" for verb in owners)
    else:
        fix = f"make {words}, without it"
    rule = f"{words} takes " + (" ".join(takes) or "no variables")
    return FrontDoorError(
        f'{words} takes no variable "{name}".', seen=f"{name}={_quoted(value)}", rule=rule, fix=fix
    )


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches  # only errors need it

    return (get_close_matches(name, known, n=1, cutoff=0.5) or [""])[0]


def _quoted(value: str) -> str:
    from shlex import quote  # only errors need it

    return quote(value)


if __name__ == "__main__":
    sys.exit(main())
