"""Plans that follow one that was agreed on: by what `auto` measures, and by how gradients come.

Owns when such a plan takes the place of the one before. Every rank makes it of the same facts, and
no rank goes on with one that another has not.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from ddp.agreement import check_same_plan, make_plan, trainable
from ddp.algorithms import AUTO
from ddp.auto import measure
from ddp.choice import Chooser
from ddp.errors import TransportError
from ddp.fabric import Fabric
from ddp.membership import Membership, PrivateGroup
from ddp.options import Options
from ddp.own_schedule import plan_facts
from ddp.plan import ReductionPlan


def agree_on_choice(
    membership: Membership,
    group: PrivateGroup,
    module: nn.Module,
    options: Options,
    fabric: Fabric,
    plan: ReductionPlan,
) -> tuple[Chooser, ReductionPlan]:
    """Who chooses for `auto`, and the plan that follows; `plan` where something else was asked for.

    Raises TransportError, and UsageError with one text on all ranks.
    """
    chooser = Chooser(fabric)
    if options.algorithm == AUTO:
        sizes = [b.numel * getattr(torch, b.dtype).itemsize for b in plan.buckets]
        chooser = measure(group, fabric, max(sizes), options.timeout_s)
        plan = make_plan(module, options, fabric, membership.size, chooser=chooser)
        check_same_plan(membership.exchange("choice", plan_facts(plan)))
    return chooser, plan


def agree_on_rebuilt(
    group: PrivateGroup,
    module: nn.Module,
    options: Options,
    plan: ReductionPlan,
    chooser: Chooser,
    ready_order: Sequence[str],
) -> ReductionPlan:
    """The plan that follows from the order in which gradients came on rank 0; `plan` where each
    bucket would hold the same parameters as before. Raises TransportError where ranks disagree.
    """
    places = {name: place for place, (name, _) in enumerate(trainable(module))}
    order = torch.tensor([places[name] for name in ready_order])
    group.broadcast_bytes([order], of_host=True)
    fabric = Fabric(plan.node_of)
    rebuilt = make_plan(module, options, fabric, fabric.num_ranks, order.tolist(), chooser)
    rebuilt = replace(rebuilt, algorithm=plan.algorithm)
    if _contents(rebuilt) == _contents(plan):
        rebuilt = plan
    ours = torch.tensor(list(bytes.fromhex(rebuilt.sha256)), dtype=torch.uint8)
    theirs = ours.clone()
    group.broadcast_bytes([theirs], of_host=True)
    if not theirs.equal(ours):
        raise TransportError(
            "this rank made another reduction plan than rank 0 of the same order of gradients; "
            "run the same version of this package on every rank"
        )
    return rebuilt


def _contents(plan: ReductionPlan) -> list[frozenset[str]]:
    return [frozenset(bucket.parameters) for bucket in plan.buckets]
