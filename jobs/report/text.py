"""How numbers and lines look: three fixed layouts, and digits that are never cut.

Owns widths, rounding and wrapping. Screens are lists of rich Text, one per line; whoever prints
them neither wraps nor crops.
"""

import textwrap
from collections.abc import Iterable, Sequence

from rich.text import Text

LAYOUTS = (80, 100, 120)
LOUD = "bold magenta"
GOOD = "green"
BAD = "bold red"
QUIET = "dim"

Lines = list[Text]


def layout(width: int) -> int:
    """The widest layout that fits; the narrowest where none does."""
    return max((each for each in LAYOUTS if each <= width), default=LAYOUTS[0])


def line(text: str = "", style: str = "") -> Text:
    return Text(text.rstrip(), style=style)


def paragraph(
    text: str, width: int, indent: str = "", style: str = "", first_indent: str = ""
) -> Lines:
    """Wraps at spaces; further lines start with `indent`. A word longer than a line stays whole."""
    wrapped = textwrap.wrap(
        text,
        layout(width),
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return [line(each, style) for each in wrapped]


def labelled(
    label: str,
    text: str,
    width: int,
    label_width: int = 13,
    style: str = "",
    right_margin: int = 0,
) -> Lines:
    """`  label        text`, wrapped under the text."""
    head = f"  {label}".ljust(2 + label_width)
    room = layout(width) - len(head) - right_margin
    wrapped = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    first, *rest = wrapped
    return [line(head + first, style), *(line(" " * len(head) + each, style) for each in rest)]


def number(value: float, decimals: int = 0) -> str:
    return f"{value:,.{decimals}f}"


def significant(value: float, digits: int = 3) -> str:
    """At least `digits` digits, with separators: 3.47, 23.9, 191, 7,160."""
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 1
    return number(value, max(0, digits - magnitude))


def megabytes(num_bytes: float) -> str:
    return f"{significant(num_bytes / 1e6)} MB"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def percent(ratio: float, decimals: int = 0) -> str:
    return f"{ratio * 100:.{decimals}f} %"


def count(num: int, noun: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"


def ms_decimals(total_s: float) -> int:
    """Decimals with which milliseconds of this size show three digits."""
    return 0 if total_s >= 0.1 else 1 if total_s >= 0.01 else 2


def milliseconds(value_s: float) -> str:
    return f"{number(value_s * 1e3, ms_decimals(abs(value_s)))} ms"


def round_to_sum(values: Sequence[float], total: int) -> list[int]:
    """Whole numbers near `values`, scaled, that add up to `total` (largest remainder)."""
    whole = sum(values)
    if whole <= 0:
        return [0] * len(values)
    exact = [value * total / whole for value in values]
    rounded = [int(value // 1) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: rounded[index] - exact[index])
    for index in by_remainder[: total - sum(rounded)]:
        rounded[index] += 1
    return rounded


def rounded_ms(values_s: Sequence[float]) -> tuple[list[str], str]:
    """Milliseconds as text that add up, digit for digit, to the total as text."""
    total_s = sum(values_s)
    decimals = ms_decimals(total_s)
    total = round(total_s * 1e3 * 10**decimals)
    parts = round_to_sum(values_s, total)
    return [number(part / 10**decimals, decimals) for part in parts], number(
        total / 10**decimals, decimals
    )


def plain(lines: Iterable[Text]) -> str:
    """The lines as text, for files and tests."""
    return "\n".join(each.plain for each in lines)
