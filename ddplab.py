"""The public names of ddp, of the right one: `from ddplab import DistributedDataParallel`.

Owns the check that `ddp` is the package that lies beside this file. Scripts often have a `ddp.py`
of their own, and Python looks in a script's folder first.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp import (
        ALGORITHMS,
        Algorithm,
        Collective,
        DdpError,
        DistributedDataParallel,
        Fabric,
        HookState,
        NoCollective,
        ReductionFailed,
        ReductionPlan,
        Reference,
        Schedule,
        Transfer,
        UsageError,
        accelerate_kwargs,
        reduce_hook,
    )

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


def _require_ours() -> None:
    """Raises ImportError, naming the file, where another `ddp` is found than ours."""
    ours = Path(__file__).resolve().parent / "ddp" / "__init__.py"
    loaded = sys.modules.get("ddp")
    spec = loaded.__spec__ if loaded else find_spec("ddp")
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = (spec.origin if spec else None) or next(iter(places), "nothing")
    if Path(found).resolve() == ours:
        return
    raise ImportError(
        f"import ddp finds {found}, which is not the ddp that belongs to ddplab ({ours.parent}); "
        "Python looks in the script's folder first, so nothing there may have that name; rename "
        f"{found}, and whatever imports it",
        name="ddp",
        path=found,
    )


_require_ours()


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ddplab' has no attribute {name!r}")
    return getattr(import_module("ddp"), name)


def __dir__() -> list[str]:
    return __all__
