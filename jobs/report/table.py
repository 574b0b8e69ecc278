"""Tables with fixed layouts: columns are dropped on narrow screens, a number is never cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.report.text import layout

GAP = "  "
CUT = "..."


@dataclass(frozen=True)
class Column:
    """`head` is one text per header line. Below the layout `from_width` the column is left out.

    `cut` says how few letters of a text may be left where the row is too long; None: it is whole.
    """

    head: tuple[str, ...]
    right: bool = True
    from_width: int = 80
    cut: int | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Header and rows, two spaces in. Cells are texts, in the order of `columns`."""
    room = layout(width)
    shown = [index for index, column in enumerate(columns) if column.from_width <= room]
    heads = max(len(columns[index].head) for index in shown)
    header = [[_head(columns[index], heads, number) for index in shown] for number in range(heads)]
    body = [[row[index] for index in shown] for row in rows]
    widths = [max(len(row[place]) for row in header + body) for place in range(len(shown))]
    shown_columns = [columns[index] for index in shown]
    _shorten(shown_columns, widths, room)
    return [_line(shown_columns, widths, row) for row in header + body]


def _head(column: Column, heads: int, number: int) -> str:
    padded = (*column.head, *[""] * (heads - len(column.head)))
    return padded[number]


def _shorten(columns: Sequence[Column], widths: list[int], room: int) -> None:
    """Takes from the texts that may be cut what the row is too long."""
    for place, column in enumerate(columns):
        too_long = sum(widths) + len(GAP) * len(widths) - room
        if too_long > 0 and column.cut is not None:
            widths[place] = max(column.cut, widths[place] - too_long)


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> str:
    cells = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        text = cell if len(cell) <= width else cell[: width - len(CUT)] + CUT
        cells.append(text.rjust(width) if column.right else text.ljust(width))
    return (GAP + GAP.join(cells)).rstrip()
