"""The screens of `make proof`: the lesson's table, a line for each thing, what it comes to."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.proof.lines import Line
from jobs.report.table import Column, table
from jobs.report.text import BAD, QUIET, Lines, count, labelled, line, paragraph

if TYPE_CHECKING:
    from jobs.proof.lesson import Table, TableRow  # loads torch; the first words come before it

LABEL_WIDTH = 20
PROVEN, NOT_PROVEN = "proven", "NOT PROVEN"
STATE_WIDTH = 12


def lesson_header(width: int) -> Lines:
    """What is going to happen."""
    text = (
        "A small model, trained on 4 ranks of this machine and in one process, step beside step; "
        "then one thing after another that must hold. No lab is needed. About 20 s."
    )
    return [*paragraph(text, width), line()]


def algorithms_header(width: int) -> Lines:
    text = (
        "Every algorithm on a grid of clusters, placements and sizes, in memory, and between 4 "
        "processes of this machine. No lab is needed. About 30 s."
    )
    return [*paragraph(text, width), line()]


def table_screen(it: "Table", width: int) -> Lines:
    """A row a step; a row with a difference is loud."""
    many = count(len(it.rows[0].sums), "rank")
    columns = [
        Column(("", "step")),
        Column(("loss in", "one process")),
        Column(("loss on", many)),
        Column(("diffe-", "rence")),
        Column(("parameters in", "one process"), right=False),
        Column(("parameters", f"on {many}"), right=False),
        Column(("", "equal"), right=False),
    ]
    texts = table(columns, [_cells(row) for row in it.rows], width)
    heads = len(texts) - len(it.rows)
    lines = [line(text) for text in texts[:heads]]
    for text, row in zip(texts[heads:], it.rows, strict=True):
        lines.append(line(text, BAD if row.first_difference() else ""))
    legend = (
        f"{it.num_parameters:,} parameters, by checksum after the step. In one process the loss is "
        f"that of all samples at once; on {many} the mean of theirs: they differ in the last bits."
    )
    return [*lines, *paragraph(f"  {legend}", width, indent="  ", style=QUIET), line()]


def _cells(row: "TableRow") -> list[str]:
    others = [found for found in row.sums if found != row.sum_single]
    return [
        str(row.step),
        f"{row.loss_single:.6f}",
        f"{row.loss_ranks:.6f}",
        f"{row.difference:.1e}",
        row.sum_single,
        others[0] if others else row.sum_single,
        "NO" if row.first_difference() else "yes",
    ]


def proof_lines(it: Line, width: int) -> Lines:
    """One thing: what was held against what, or the first difference."""
    state = PROVEN if it.proven else NOT_PROVEN
    head = f"{state.ljust(STATE_WIDTH)}{it.name}"
    text = it.says if it.first_difference is None else f"{it.says}. Not so: {it.first_difference}"
    style = "" if it.proven else BAD
    if len(it.name) < LABEL_WIDTH:
        return labelled(head, text, width, label_width=STATE_WIDTH + LABEL_WIDTH, style=style)
    under = labelled("", text, width, label_width=STATE_WIDTH + LABEL_WIDTH, style=style)
    return [line(f"  {head}", style), *under]


def case_screen(it: Line, _width: int) -> Lines:
    """One case of the grid, on a line of its own, however long."""
    if it.first_difference is None:
        return [line(f"  {PROVEN.ljust(STATE_WIDTH)}{it.name}", QUIET)]
    return [line(f"  {NOT_PROVEN.ljust(STATE_WIDTH)}{it.name}: {it.first_difference}", BAD)]


def closing(lines: Sequence[Line], following: str, width: int) -> Lines:
    """What all lines come to, and what to type next."""
    wrong = [each.name for each in lines if not each.proven]
    if wrong:
        text = f"{len(wrong)} of {count(len(lines), 'line')} NOT PROVEN: {'; '.join(wrong)}."
        body = paragraph(text, width, indent="  ", style=BAD)
    else:
        body = [line(f"All {count(len(lines), 'line')} proven.")]
    return [line(), *body, *labelled("next", following, width, label_width=8)]
