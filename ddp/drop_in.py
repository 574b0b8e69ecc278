"""The arguments of torch's DistributedDataParallel that have no other meaning here.

Scripts written for torch's class pass them. Owns which values are kept, and what is said of the
others: nothing is ignored that somebody asked for.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, TypedDict

import torch

from ddp.errors import UsageError
from ddp.options import OPTION_NAMES


class TorchArguments(TypedDict, total=False):
    """Those that are taken by name, with torch's meaning."""

    init_sync: bool
    check_reduction: bool
    forward_sync_buffers: bool | None
    delay_all_reduce_named_params: Any
    param_to_hook_all_reduce: Any
    mixed_precision: Any
    device_mesh: Any
    skip_all_reduce_unused_params: bool
    bucket_cap_mb_list: Any
    batched_grad_copy: bool


_KEPT: Mapping[str, tuple[Any, str]] = {
    "init_sync": (True, "parameters and buffers always come from rank 0"),
    "check_reduction": (False, "it does nothing in torch's class either"),
    "delay_all_reduce_named_params": (None, "no gradient is left to be reduced later"),
    "param_to_hook_all_reduce": (None, "no gradient is left to be reduced later"),
    "mixed_precision": (None, "convert the module, or use torch.autocast around its forward"),
    "device_mesh": (None, "give process_group=device_mesh.get_group()"),
    "skip_all_reduce_unused_params": (False, "find_unused_parameters=True reduces all"),
    "bucket_cap_mb_list": (None, "one bucket_cap_mb holds for all"),
    "batched_grad_copy": (False, "gradients are views of their bucket already"),
}
"""The only value that is kept, and what to do instead of another."""


class NeverCopied:
    """What holds connections to other processes."""

    def __getstate__(self) -> NoReturn:
        raise UsageError(
            "a wrapper holds connections to other processes and cannot be copied or pickled; "
            "copy wrapper.module, or save wrapper.state_dict()"
        )


def buffers_wanted(given: bool | None, torchs: Mapping[str, Any]) -> bool:
    """What broadcast_buffers and its newer name come to. Raises UsageError where they differ."""
    newer = torchs.get("forward_sync_buffers")
    if given is not None and newer is not None and bool(given) != bool(newer):
        raise UsageError(
            f"broadcast_buffers={given} with forward_sync_buffers={newer}: these are two names of "
            "one thing; give one of them"
        )
    wanted = newer if given is None else given
    return True if wanted is None else bool(wanted)


def why_refused(
    device: torch.device,
    device_ids: Any,
    output_device: Any,
    dim: Any,
    torchs: Mapping[str, Any],
) -> str | None:
    """Why what was asked of torch's class is not done here, and what to do; None where it is.

    Raises TypeError, as Python does, for an argument that neither class has.
    """
    for name in torchs:
        if name not in TorchArguments.__annotations__:
            near = get_close_matches(name, [*OPTION_NAMES, *TorchArguments.__annotations__], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(
                f"DistributedDataParallel() got an unexpected keyword argument {name!r}{hint}"
            )
    ids = device_ids if isinstance(device_ids, list | tuple) else [device_ids]
    named = [given for given in (*ids, output_device) if given is not None]
    if len(ids) > 1 or not all(_is(given, device) for given in named):
        return (
            f"device_ids={device_ids!r}, output_device={output_device!r} for a module on {device}: "
            "a module is reduced on the one device where it is; leave both out, or move it first"
        )
    if dim != 0:
        return f"dim={dim!r}: inputs are not scattered, each rank has its own; leave it out"
    for name, (kept, remedy) in _KEPT.items():
        value = torchs.get(name, kept)
        if value is not kept and value != kept:
            return f"{name}={value!r:.80}: only {kept} is kept; {remedy}"
    return None


def _is(given: Any, device: torch.device) -> bool:
    """Whether a device as torch's class takes it, by number or by name, is this GPU."""
    return device.type == "cuda" and given in (device, str(device), device.index)
