"""An error on the screen: what happened, what was seen, the rule, the fix."""

from collections.abc import Sequence

from jobs.report.text import BAD, Lines, labelled, line, paragraph
from jobs.summary import Explained


def error_screen(error: Explained, width: int) -> Lines:
    """`ddplab: message`, then the parts that are known."""
    first, *more = error.message.splitlines() or [""]
    lines = paragraph(f"ddplab: {first}", width, indent="  ", style=BAD)
    for each in more:
        lines += paragraph(f"  {each}", width, indent="    ")
    lines += _part("seen", error.seen, width)
    lines += _part("rule", error.rule, width)
    return lines + _fixes(error.fix, width)


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
