"""The screen of `make doctor`: a line for each check, as it is made, and what it comes to.

Standard library only, and readable by any Python 3: the front door shows it too, without an
environment. A line is a text and its style.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, WARNING, Check

WIDTHS = (80, 100, 120)
WORDS = {OK: "ok", WARNING: "warning", FAULT: "FAULT", NOT_HERE: "not here", SKIPPED: "not tried"}
STYLES = {OK: "", WARNING: "yellow", FAULT: "bold red", NOT_HERE: "dim", SKIPPED: "dim"}
INDENT, STATE_WIDTH, NAME_WIDTH, FIX_WIDTH = 2, 11, 13, 5
REMARK = re.compile(r" {3,}")


def check_lines(check: Check, width: int) -> list[tuple[str, str]]:
    """What was seen, wrapped, and under it each fix, whose commands can be copied whole."""
    style = STYLES[check.state]
    state = " " * INDENT + WORDS[check.state].ljust(STATE_WIDTH)
    head = state + check.name.ljust(NAME_WIDTH)
    lines = _wrapped(check.seen, head, " " * len(head), width)
    for number, fix in enumerate(check.fix):
        first = " " * len(state) + ("or" if number else "fix").ljust(FIX_WIDTH)
        further = " " * len(first)
        room = _layout(width) - len(first)
        for text in [fix] if len(fix) <= room else _pieces(fix, room):
            lines.append(first + text)
            first = further
    return [(text.rstrip(), style) for text in lines]


def _pieces(fix: str, room: int) -> Iterator[str]:
    """A fix that is too long for a line: its commands, none broken, then the remark on them."""
    command, *remarks = REMARK.split(fix)
    yield from (command if len(command) <= room else command.replace(" && ", " &&\n")).splitlines()
    for remark in remarks:
        yield from textwrap.wrap(f"({remark})", room, break_on_hyphens=False)


def _wrapped(text: str, first: str, further: str, width: int) -> list[str]:
    room = _layout(width) - len(first)
    texts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [(further if number else first) + each for number, each in enumerate(texts)]


def closing_lines(checks: Sequence[Check], options: str, width: int) -> list[tuple[str, str]]:
    """What it comes to, and what to type next."""
    faults = [check.name for check in checks if check.state == FAULT]
    num_warnings = sum(check.state == WARNING for check in checks)
    warnings = f" {_count(num_warnings, 'warning')}." if num_warnings else ""
    if faults:
        text = f"{_count(len(faults), 'fault')}: {', '.join(faults)}.{warnings} Begin at the top."
        then = "  next    mend it, then: make doctor"
        style = STYLES[FAULT]
    else:
        text = f"Nothing is missing that a lab needs.{warnings}"
        then, style = f"  next    make cluster-up{options}", ""
    wrapped = textwrap.wrap(text, _layout(width), subsequent_indent="  ")
    return [("", ""), *((part, style) for part in wrapped), (then, "")]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _layout(width: int) -> int:
    return max((each for each in WIDTHS if each <= width), default=WIDTHS[0])
