"""Autograd's graph tasks: when a backward that concerns a wrapper ends.

Owns the private parts of torch that tell one backward from another. Reentrant checkpointing runs
tasks inside a backward; the end of one of those is told by the node that is computed around it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable


class TaskWatch:
    """Calls `on_end(nested)` at the end of each task that is watched, perhaps more than once."""

    def __init__(self, on_end: Callable[[bool], None]) -> None:
        self._on_end = on_end
        self._task = -1
        self._output_node: Any = None

    @staticmethod
    def inside_backward() -> bool:
        return torch._C._current_graph_task_id() != -1

    @property
    def watches_outermost(self) -> bool:
        """Whether this backward came through an output: its own end will be told then."""
        return self._output_node is not None

    def watch(self) -> None:
        """The task that runs now."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            Variable._execution_engine.queue_callback(self._end)

    def watch_output(self) -> None:
        """As `watch`, called by a hook on an output of the wrapper."""
        self._output_node = torch._C._current_autograd_node()
        self.watch()

    def forget(self) -> None:
        self._task, self._output_node = -1, None

    def is_backward(self) -> bool:
        """At the end of a task that came through an output: whether it added to leaves.
        autograd.grad does not.
        """
        leaf = first_leaf(self._output_node) if self.watches_outermost else None
        try:
            return leaf is not None and bool(torch._C._will_engine_execute_node(leaf))
        except RuntimeError:  # it says so of leaves that autograd.grad was asked for
            return False

    def _end(self) -> None:
        self._on_end(torch._C._current_autograd_node() is not None)


def first_leaf(node: Any) -> Any:
    """A node at or below `node` that adds to a leaf's gradient; None without one."""
    seen: set[Any] = set()
    todo = [node]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", None) is not None:
            return node
        todo.extend(edge for edge, _ in node.next_functions if edge is not None)
    return None
