"""What a forward returned: its tensors, however deep they lie, and the parameters they lead to.

Owns the search through containers and through autograd's graph. Knows nothing of buckets.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter
from torch.utils._pytree import SUPPORTED_NODES, tree_flatten

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.Size,
)  # fmt: skip


def find_tensors(outputs: Any) -> tuple[list[Tensor], bool]:
    """The tensors in `outputs`, and whether those are all: False where an object of an unknown
    kind may hold more. Looks into mappings, sequences, sets, dataclasses and torch's pytrees.
    """
    tensors: list[Tensor] = []
    complete = True
    seen: set[int] = set()
    todo = [outputs]
    while todo:
        value = todo.pop()
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, PLAIN) or id(value) in seen:
            continue
        else:
            seen.add(id(value))
            parts = _parts(value)
            complete &= parts is not None
            todo.extend(parts or ())
    return tensors, complete


def _parts(value: Any) -> list[Any] | None:
    parts: list[Any] = []
    if is_dataclass(value) and not isinstance(value, type):
        parts += [getattr(value, field.name, None) for field in fields(value)]
    if isinstance(value, Mapping):
        return [*parts, *value.values()]
    if isinstance(value, Sequence | Set):
        return [*parts, *value]
    if type(value) in SUPPORTED_NODES:
        return [*parts, *tree_flatten(value)[0]]
    return parts if is_dataclass(value) else None


def reachable_parameters(tensors: Iterable[Tensor]) -> set[int] | None:
    """ids of the parameters that a backward from `tensors` can bring a gradient to.

    None where the graph does not say: a function written in Python (checkpointing with
    use_reentrant=True is one) may lead to more than its edges show.
    """
    found: set[int] = set()
    seen: set[Any] = set()
    todo: list[Any] = []
    for tensor in tensors:
        if isinstance(tensor, Parameter):
            found.add(id(tensor))
        elif tensor.grad_fn is not None:
            todo.append(tensor.grad_fn)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return None
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        todo.extend(edge for edge, _ in node.next_functions if edge is not None)
    return found
