"""Why gradients are not reduced, in words: what was seen, the rule, and the remedy.

Owns the texts that name parameters. When they are said is decided by the reducer.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from ddp.options import Options


def bad_gradient(gradient: Tensor | None) -> str | None:
    """Why this gradient cannot be reduced; None where it can."""
    if gradient is None:
        return "lost its gradient to another hook before it could be reduced"
    if gradient.layout != torch.strided:
        return f"has a {gradient.layout} gradient, which cannot be reduced; use sparse=False"
    if gradient.requires_grad:
        return "has a gradient with a graph of its own; backward with create_graph=False"
    return None


def surplus(options: Options) -> str:
    """For a parameter that gets another gradient than is expected."""
    if options.static_graph:
        return (
            "got more gradients than in the first backward, though static_graph=True; leave it "
            "out where the graph changes"
        )
    return (
        "got two gradients in one backward (a layer used twice under reentrant checkpointing does "
        "this); use checkpoint(..., use_reentrant=False), or static_graph=True"
    )


def unreachable() -> str:
    """For a gradient of a parameter that was taken for unused."""
    return (
        "got a gradient although nothing that forward returned leads to it; use it inside forward "
        "only, and return what it makes"
    )


def unused(names: Collection[str], options: Options) -> str:
    """For parameters that got no gradient, and had to."""
    if options.static_graph:
        return (
            f"no gradient reached {listed(names)} in this backward, though one did in the first "
            "and static_graph=True; leave it out where the graph changes"
        )
    return (
        f"no gradient reached {listed(names)} in this backward; every parameter that requires a "
        "gradient must take part in the loss on every rank (freeze the others before wrapping, or "
        "wrap with find_unused_parameters=True)"
    )


def deadlock(names: Collection[str], wait_s: float) -> str:
    """For the same, where the lesson's deadlock was asked for."""
    return (
        f"deadlock, as in the lesson: waited {wait_s:g} s for the gradient of {listed(names)}, "
        "which this backward never computes, while peers wait for the bucket; "
        "find_unused_parameters=True looks first which parameters take part"
    )


def unreduced(names: Collection[str], options: Options) -> str:
    """For gradients that an optimizer was about to use."""
    remedy = (
        "call sync_grads() after backward"
        if options.explicit_sync
        else "run the last forward before it outside no_sync(), and its backward to the end"
    )
    return (
        f"the optimizer was about to step with gradients of {listed(names)} that were not "
        f"reduced: {remedy}, before optimizer.step()"
    )


def listed(names: Collection[str]) -> str:
    """The first of them, for a message."""
    first = ", ".join(map(repr, list(names)[:5]))
    return first + (", ..." if len(names) > 5 else "")
