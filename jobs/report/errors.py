"""An error on the screen: what happened, what was seen, the rule, the fix."""

import re
from collections.abc import Sequence

from jobs.report.text import BAD, Lines, labelled, line, paragraph
from jobs.summary import Explained

SHOWN = 100
LONG_WORD = re.compile(r"\S{400,}")


def error_screen(error: Explained, width: int) -> Lines:
    """`ddplab: message`, then the parts that are known."""
    first, *more = _clipped(error.message).splitlines() or [""]
    lines = paragraph(f"ddplab: {first}", width, indent="  ", style=BAD)
    for each in more:
        lines += paragraph(f"  {each}", width, indent="    ")
    lines += _part("seen", _clipped(error.seen), width)
    lines += _part("rule", _clipped(error.rule), width)
    return lines + _fixes([_clipped(fix) for fix in error.fix], width)


def _clipped(text: str | None) -> str:
    """Without what a terminal would obey, and without words that are longer than any path."""
    shown = "".join(_harmless(letter) for letter in text or "")
    return LONG_WORD.sub(lambda word: f"{word[0][:SHOWN]}... ({len(word[0]):,} letters)", shown)


def _harmless(letter: str) -> str:
    return letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]


def _part(label: str, text: str | None, width: int) -> Lines:
    if not text:
        return []
    first, *rest = text.splitlines()
    lines = labelled(label, first, width, label_width=8)
    return lines + [line(" " * 10 + each) for each in rest]


def _fixes(fixes: Sequence[str], width: int) -> Lines:
    if not fixes:
        return []
    if len(fixes) == 1:
        return labelled("fix", fixes[0], width, label_width=8)
    return [line("  fix     one of:"), *(line(" " * 12 + fix) for fix in fixes)]
