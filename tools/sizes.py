"""Counts the lines of files and functions, shows the largest, and holds the product to its limits.

A function's docstring does not count: a legend of shapes is no reason to split it. Tests are shown,
not limited: a table of cases may be long.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
LIMITED = ("cluster", "ddp", "jobs", "tools")
SHOWN = (*LIMITED, "tests")
_NUM_WORST = 3


class Size(NamedTuple):
    """How long one file or function is, and the most it may be (0: no limit)."""

    lines: int
    where: str
    limit: int

    @property
    def is_over(self) -> bool:
        return 0 < self.limit < self.lines


def report(root: Path) -> tuple[bool, str]:
    """Whether all are within their limits, and the worst of each kind in words."""
    files: list[Size] = []
    functions: list[Size] = []
    for top in SHOWN:
        for path in sorted((root / top).rglob("*.py")):
            file, inside = measure(path, root, limited=top in LIMITED)
            files.append(file)
            functions += inside
    over = [size for size in files + functions if size.is_over]
    lines = [f"  over the limit of {size.limit}: {size.lines:4}  {size.where}" for size in over]
    for kind, sizes in (("files", files), ("functions", functions)):
        worst = sorted(sizes, key=lambda size: -size.lines)[:_NUM_WORST]
        lines.append(f"  longest {kind:9}  " + ", ".join(f"{s.where} {s.lines}" for s in worst))
    return not over, "\n".join(lines)


def measure(path: Path, root: Path, *, limited: bool) -> tuple[Size, list[Size]]:
    """The size of a file and of every function in it."""
    text = path.read_text("utf-8")
    name = str(path.relative_to(root))
    limits = (MAX_FILE_LINES, MAX_FUNCTION_LINES) if limited else (0, 0)
    inside = [
        Size(_function_lines(node), f"{name}:{node.lineno} {node.name}", limits[1])
        for node in _functions(ast.parse(text))
    ]
    return Size(len(text.splitlines()), name, limits[0]), inside


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines
