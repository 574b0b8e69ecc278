"""The algorithms under Hugging Face Accelerate, which wraps models in torch's own class.

    accelerator = Accelerator(kwargs_handlers=[accelerate_kwargs("hierarchical")])

Owns the handler; what it registers is `ddp.hooks`. Accelerate is imported when it is called.
"""

from dataclasses import fields
from importlib import import_module
from typing import Any

from torch import nn

from ddp.errors import UsageError
from ddp.hooks import HookState, reduce_hook


def accelerate_kwargs(algorithm: str = "hierarchical", **arguments: Any) -> Any:
    """A DistributedDataParallelKwargs, whose models are reduced by `algorithm`.

    `arguments` are those of DistributedDataParallelKwargs and of HookState, by name. The states
    of its hooks are in `.hook_states`, one for each model that was prepared. Raises UsageError
    where Accelerate is not installed.
    """
    try:
        utils = import_module("accelerate.utils")
    except ModuleNotFoundError as exc:
        raise UsageError(f"no module {exc.name}: install accelerate beside torch") from exc
    kind = utils.DistributedDataParallelKwargs
    theirs = {field.name for field in fields(kind)}
    handler = kind(**{name: value for name, value in arguments.items() if name in theirs})
    ours = {name: value for name, value in arguments.items() if name not in theirs}
    hooked = [f"{name}={arguments[name]!r}" for name in arguments if name.startswith("comm_")]
    if hooked:
        raise UsageError(
            f"accelerate_kwargs with {', '.join(hooked)}: a model has one communication hook, and "
            "the algorithm is one; leave it out, or use DistributedDataParallelKwargs itself"
        )
    states: list[HookState] = []

    def register_comm_hook(model: nn.Module) -> None:
        states.append(HookState(algorithm, **ours))
        model.register_comm_hook(states[-1], reduce_hook)  # type: ignore[operator]

    def to_dict() -> dict[str, Any]:
        """What torch's class is called with."""
        return {name: getattr(handler, name) for name in theirs if not name.startswith("comm_")}

    # Accelerator takes objects of exactly this class, so there can be none of its children
    handler.register_comm_hook, handler.to_dict = register_comm_hook, to_dict
    handler.hook_states = states
    return handler
