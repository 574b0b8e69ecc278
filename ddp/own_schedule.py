"""What a rank has to say of its plan: its hash, and whether a schedule of the user's own is right.

Such a schedule is proven before it is used, on the fabric that it is used on, so that a wrong one
stops all ranks with the first difference instead of training on wrong sums or waiting for a peer.
"""

import hashlib
from dataclasses import replace

from ddp.errors import DdpError
from ddp.importpath import is_pinned
from ddp.membership import Facts
from ddp.plan import ReductionPlan
from ddp.replay import prove


def plan_facts(plan: ReductionPlan) -> Facts:
    """To be compared by all ranks. A fault found here becomes a fact, so that all raise it."""
    facts: Facts = {"sha256": plan.sha256, "error": None, "schedule": None}
    if not is_pinned(plan.algorithm):
        return facts
    try:
        schedule = plan.schedule()
        assert schedule is not None
        stages = list(schedule)
        prove(replace(schedule, stages=lambda: stages))
    except DdpError as exc:
        return {**facts, "error": str(exc)}
    text = f"{schedule.num_chunks} {[tuple(map(tuple, stage)) for stage in stages]}"
    return {**facts, "schedule": hashlib.sha256(text.encode()).hexdigest()}
