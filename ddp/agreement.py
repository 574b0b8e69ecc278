"""What all ranks must say alike before a model is wrapped, and the plan that follows from it.

Owns the description of a module, its comparison, and the making of a ReductionPlan. Every rank
compares the same facts, so every rank raises the same text.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from ddp.algorithms import ALGORITHMS, AUTO
from ddp.bucket import status_numel
from ddp.choice import Choice, Chooser
from ddp.errors import DdpError, UsageError
from ddp.fabric import Fabric
from ddp.failure import leave_together
from ddp.importpath import is_pinned
from ddp.membership import Facts, Membership, fabric_from, node_identity
from ddp.options import Options
from ddp.own_schedule import plan_facts
from ddp.placing import check_algorithm, check_fabric, check_one_device, device_of
from ddp.plan import BucketLayout, ReductionPlan, choose_segments, make_buckets


def agree(
    membership: Membership,
    module: nn.Module,
    options: Options,
    fabric: Fabric | None,
    *,
    registered: bool,
) -> tuple[Fabric, ReductionPlan]:
    """Compare what all ranks say, and make the plan. Raises UsageError with one text on all."""
    node = node_identity(os.environ)
    ours = local_facts(module, options, node, registered=registered)
    try:
        facts = membership.exchange("model", ours)
        check_same(facts)
        fabric = agree_on_fabric(facts, fabric)
        check_fabric(device_of(module), options, fabric)
        plan = make_plan(module, options, fabric, membership.size)
        check_same_plan(membership.exchange("plan", plan_facts(plan)))
    except DdpError:  # peers may still have to read the same in the store
        leave_together(membership.store, membership.rank, membership.size)
        raise
    return fabric, plan


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that get gradients, each once. Those without elements have nothing to sum."""
    return [
        (name, parameter)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter.numel()
    ]


Shapes = dict[str, tuple[int, bool, torch.dtype, torch.Size, torch.device]]


def parameter_shapes(module: nn.Module) -> Shapes:
    """What must not change about the parameters while the module is wrapped."""
    return {
        name: (id(p), p.requires_grad, p.dtype, p.shape, p.device)
        for name, p in module.named_parameters()
    }


def changed_since(before: Shapes, module: nn.Module) -> str | None:
    """The first parameter that is not as it was, in words."""
    now = parameter_shapes(module)
    if now == before:
        return None
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            return (
                f"parameter {name!r} was frozen, unfrozen, replaced, converted, added or removed "
                "after wrapping; close the wrapper, and wrap the module as it is now on every rank"
            )
    return None


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def local_facts(module: nn.Module, options: Options, node: str, *, registered: bool) -> Facts:
    """What this rank has to say; a fault found here becomes a fact, so that all ranks raise it."""
    facts: Facts = {"error": None, "node": node, "options": asdict(options)}
    try:
        options.check(registered=registered)
        check_module(module)
        check_algorithm(device_of(module), options, registered=registered)
    except UsageError as exc:
        return {**facts, "error": str(exc)}
    named: list[tuple[str, str, Tensor]] = []
    named += [("parameter", *item) for item in module.named_parameters()]
    named += [("buffer", *item) for item in module.named_buffers()]
    facts["device"] = device_of(module).type
    facts["tensors"] = [
        [kind, name, list(tensor.shape), dtype_name(tensor), tensor.requires_grad]
        for kind, name, tensor in named
    ]
    return facts


def check_module(module: nn.Module) -> None:
    """Raises UsageError for a module whose gradients cannot be reduced."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise UsageError(f"{name!r} has no shape yet: run one forward before wrapping")
    check_one_device(module)
    for name, part in module.named_modules():
        layer = isinstance(part, nn.Embedding | nn.EmbeddingBag)
        if layer and part.sparse and part.weight.requires_grad:
            raise UsageError(f"{name or 'the module'!r} makes sparse gradients: use sparse=False")
    if not trainable(module):
        raise UsageError(
            "no parameter of the module requires a gradient, so there is nothing to reduce; "
            "use the module without wrapping it"
        )


def check_same(facts: Sequence[Facts]) -> None:
    """Raises UsageError, with one text on all ranks, unless they all say the same as rank 0."""
    for rank, theirs in enumerate(facts):
        if theirs["error"]:
            raise UsageError(f"rank {rank}: {theirs['error']}")
    for rank, theirs in enumerate(facts):
        for name, ours in _dict(facts[0]["options"]).items():
            if _dict(theirs["options"])[name] != ours:
                raise UsageError(
                    f"rank {rank} asks for {name}={_dict(theirs['options'])[name]!r} and rank 0 "
                    f"for {name}={ours!r}: give every rank the same arguments"
                )
        if theirs.get("device") != facts[0].get("device"):
            raise UsageError(
                f"rank {rank} has its module on {theirs['device']} and rank 0 on "
                f"{facts[0]['device']}: move it to a device of the same kind on every rank"
            )
        _check_same_tensors(rank, _list(theirs["tensors"]), _list(facts[0]["tensors"]))


def _check_same_tensors(rank: int, theirs: list[Any], ours: list[Any]) -> None:
    for position in range(max(len(theirs), len(ours))):
        pair = [
            _tensor_text(tensors[position]) if position < len(tensors) else "nothing"
            for tensors in (theirs, ours)
        ]
        if pair[0] != pair[1]:
            raise UsageError(
                f"the models differ: at place {position} rank {rank} has {pair[0]} and rank 0 has "
                f"{pair[1]}; build the same module, in the same order, on every rank"
            )


def _tensor_text(tensor: list[Any]) -> str:
    kind, name, shape, dtype, requires_grad = tensor
    frozen = "" if requires_grad or kind == "buffer" else " frozen"
    return f"{kind} {name!r} {tuple(shape)} {dtype}{frozen}"


def make_plan(
    module: nn.Module,
    options: Options,
    fabric: Fabric,
    world_size: int,
    ready_order: Sequence[int] | None = None,
    chooser: Chooser | None = None,
) -> ReductionPlan:
    """The plan for `module`, from what all ranks agreed on.

    `ready_order`: places in `trainable(module)`, as a backward completed them; None: from last
    to first. `chooser`: who chooses for `auto`; None: nothing was measured yet.
    """
    chooser = chooser or Chooser(fabric)
    parameters = trainable(module)
    if ready_order is not None:
        parameters = [parameters[place] for place in reversed(ready_order)]
    buckets = make_buckets(
        [(name, p.numel(), dtype_name(p), p.element_size()) for name, p in parameters],
        options.bucket_cap_mb,
        options.first_bucket_mb,
        options.per_parameter,
    )
    layouts = []
    for dtype, names, numels in buckets:
        kind: torch.dtype = getattr(torch, dtype)
        num_used = len(names) if options.allows_unused else 0
        layout = BucketLayout(dtype, names, numels, 1, status_numel(kind, world_size, num_used))
        num_bytes = layout.numel * kind.itemsize
        algorithm, segments = Choice(options.algorithm, 1)
        if device_of(module).type == "cpu":
            algorithm, segments = _choice(options, num_bytes, chooser)
        layouts.append(replace(layout, algorithm=algorithm, segments=segments))
    return ReductionPlan(
        options.algorithm, options.ring_order, options.ring_seed, fabric.node_of, tuple(layouts)
    )


def _choice(options: Options, num_bytes: int, chooser: Chooser) -> Choice:
    algorithm = options.algorithm
    if options.segments != "auto":
        return Choice(algorithm, options.segments)
    if algorithm == AUTO:
        return chooser.of(num_bytes)
    if algorithm in ALGORITHMS or is_pinned(algorithm):
        return Choice(algorithm, choose_segments(algorithm, num_bytes, chooser.fabric.num_nodes))
    return Choice(algorithm, 1)  # a collective of the caller's own


def agree_on_fabric(facts: Sequence[Facts], given: Fabric | None) -> Fabric:
    """The fabric given, if it has a place for every rank, else the one that ranks report."""
    if given is None:
        return fabric_from([str(theirs["node"]) for theirs in facts])
    if given.num_ranks != len(facts):
        raise UsageError(f"a fabric of {given.num_ranks} ranks for a group of {len(facts)}")
    return given


def check_same_plan(facts: Sequence[Facts]) -> None:
    """Raises UsageError where ranks made different plans of the same facts, or wrong schedules."""
    for rank, theirs in enumerate(facts):
        if theirs["error"]:
            raise UsageError(f"rank {rank}: {theirs['error']}")
    for rank, theirs in enumerate(facts):
        if theirs["schedule"] != facts[0]["schedule"]:
            raise UsageError(
                f"rank {rank} made another schedule than rank 0 of the same fabric: an algorithm "
                "depends on nothing but its arguments"
            )
        if theirs != facts[0]:
            raise UsageError(
                f"rank {rank} made another reduction plan than rank 0: "
                "run the same version of this package, on the same fabric, on every rank"
            )


def _dict(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value


def _list(value: object) -> list[Any]:
    assert isinstance(value, list)
    return value
