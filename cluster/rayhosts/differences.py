"""Whether nodes run the same software. Pure: compares what they told."""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.errors import NodesDiffer

COMPARED = ("python", "torch", "ray", "ddplab", "sources")
HERE = "here"
"""The launcher, which speaks to the nodes' agents: its ddplab counts, not its torch."""
COMPARED_HERE = ("ray", "ddplab", "sources")

Told = Mapping[str, Any]


def require_same_software(nodes: Sequence[tuple[str, Told]], here: Told) -> None:
    """Raises NodesDiffer with a table of what differs; every row names a node and its values."""
    differing = [key for key in COMPARED if len({told[key] for _, told in nodes}) > 1]
    first = nodes[0][1]
    differing += [key for key in COMPARED_HERE if key not in differing and here[key] != first[key]]
    missing = [key for key in ("torch", "ddplab") if any(told[key] is None for _, told in nodes)]
    columns = [key for key in COMPARED if key in differing or key in missing]
    if not columns:
        return
    rows = [[name, *_cells(told, columns)] for name, told in nodes]
    if set(columns) & set(COMPARED_HERE):
        shown = {key: here[key] if key in COMPARED_HERE else "" for key in columns}
        rows.append([HERE, *_cells(shown, columns)])
    lacking = [name for name, told in nodes if any(told[key] is None for key in missing)]
    fix = "install the same everywhere"
    if lacking:
        fix = f"install what {', '.join(lacking)} lacks, with the Python that its Ray runs with"
    raise NodesDiffer(
        f"nodes do not run the same software: {', '.join(columns)}",
        "ranks of one job must run the same Python, torch, Ray and ddplab, to the patch level",
        fix,
        seen=table([["", *columns], *rows]),
    )


def _cells(told: Told, columns: Sequence[str]) -> list[str]:
    return ["not installed" if told[key] is None else str(told[key]) for key in columns]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, a line per row."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
