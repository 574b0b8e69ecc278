"""Breaking one line of any algorithm makes its proof fail.

Every operator, number, choice and statement of every file in ddp/algorithms is changed in turn, and
the changed algorithm goes through the grid of `proof algorithms`. What is not found is listed here,
with the reason why it is no fault of an all-reduce.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

import jobs.proof.grid
from jobs.proof import grid
from jobs.proof.variants import Variant, variants

FOLDER = Path(__file__).parents[3] / "ddp" / "algorithms"
PROVEN = [variant for variant in variants() if variant.algorithm.proof == "bytes"]
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitXor: ast.BitOr,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
HARMLESS = {
    # what is refused, not what is reduced; tests/ddp/test_algorithms.py has it
    "require_no_order(",
    "order not in RING_ORDERS",
    "order != 'shuffled'",
    # each half may keep either half: the same bytes, and the same sums
    "(middle, high) if place >> stage & 1 else (low, middle)",
}


@dataclass
class Break(ast.NodeTransformer):
    """Makes the change of this number; `broken` is the source that it changes."""

    number: int
    broken: str = ""

    def is_due(self, node: ast.AST) -> bool:
        self.number -= 1
        if self.number == -1:
            self.broken = ast.unparse(node)
        return self.number == -1

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) in SWAPPED and self.is_due(node):
            node.op = SWAPPED[type(node.op)]()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return ast.Constant(not node.value) if self.is_due(node) else node
        for change in (1, -1) if isinstance(node.value, int) else ():
            if self.is_due(node):
                return ast.Constant(node.value + change)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return ast.UnaryOp(ast.Not(), node) if self.is_due(node) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if self.is_due(node):
            node.body, node.orelse = node.orelse, node.body
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        is_text = isinstance(node.value, ast.Constant)
        return ast.Pass() if not is_text and self.is_due(node) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(line) for line in node.body]  # not its defaults and decorators
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(line) for line in node.body]
        return node


def broken(name: str) -> Iterator[tuple[str, ModuleType]]:
    """What was changed, and the module with that change."""
    source = (FOLDER / f"{name}.py").read_text()
    number = 0
    while True:
        change = Break(number)
        tree = ast.fix_missing_locations(change.visit(ast.parse(source)))
        if not change.broken:
            return
        module = ModuleType(f"broken_{name}")
        exec(compile(tree, name, "exec"), module.__dict__)
        yield change.broken, module
        number += 1


def is_found(variant: Variant, module: ModuleType) -> bool:
    build = getattr(module, f"build_{variant.algorithm.name}")
    changed = replace(variant, algorithm=replace(variant.algorithm, build=build))
    results = grid.in_memory(changed)
    try:
        served = False
        for result in results:
            served = True
            if result.difference:
                return True
    except Exception:  # the command ends with it
        return True
    return not served


@pytest.mark.parametrize("name", sorted({variant.algorithm.name for variant in PROVEN}))
def test_a_broken_line_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.proof.grid, "MAX_RANKS", 5)
    mine = [variant for variant in PROVEN if variant.algorithm.name == name]
    missed = set()
    num_found = 0
    for change, module in broken(name):
        if any(is_found(variant, module) for variant in mine):
            num_found += 1
        else:
            missed.add(change)
    assert {change for change in missed if not any(each in change for each in HARMLESS)} == set()
    assert num_found >= 10
