"""Data-parallel training of any torch module: `from ddp import DistributedDataParallel`.

Owns the names that a training script needs; each is imported when it is first asked for, so that
reading an algorithm's name or pricing a schedule does not cost the import of torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp.algorithms import ALGORITHMS
    from ddp.algorithms.algorithm import Algorithm
    from ddp.errors import DdpError, ReductionFailed, UsageError
    from ddp.executor import Collective, NoCollective
    from ddp.fabric import Fabric
    from ddp.hooks import HookState, reduce_hook
    from ddp.parallel import DistributedDataParallel
    from ddp.plan import ReductionPlan
    from ddp.reference import Reference
    from ddp.schedule import Schedule, Transfer
    from ddp.with_accelerate import accelerate_kwargs

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Collective",
    "DdpError",
    "DistributedDataParallel",
    "Fabric",
    "HookState",
    "NoCollective",
    "ReductionFailed",
    "ReductionPlan",
    "Reference",
    "Schedule",
    "Transfer",
    "UsageError",
    "accelerate_kwargs",
    "reduce_hook",
]

_MODULES = {
    "ALGORITHMS": "ddp.algorithms",
    "Algorithm": "ddp.algorithms.algorithm",
    "Collective": "ddp.executor",
    "DdpError": "ddp.errors",
    "DistributedDataParallel": "ddp.parallel",
    "Fabric": "ddp.fabric",
    "HookState": "ddp.hooks",
    "NoCollective": "ddp.executor",
    "ReductionFailed": "ddp.errors",
    "ReductionPlan": "ddp.plan",
    "Reference": "ddp.reference",
    "Schedule": "ddp.schedule",
    "Transfer": "ddp.schedule",
    "UsageError": "ddp.errors",
    "accelerate_kwargs": "ddp.with_accelerate",
    "reduce_hook": "ddp.hooks",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'ddp' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
