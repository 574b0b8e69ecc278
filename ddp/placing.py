"""On which device a module is reduced, and with what: the CPU by our schedules, a GPU by NCCL.

Owns which algorithms a device has, and the groups of its backend. Why the status words and the
fingerprint go through the device too: they are in the bucket, so that whoever reads them knows that
the gradients beside them were summed with them. What ranks say between steps (join, other buckets)
is a few words of the host, and stays on the sockets that `membership` opens.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore

from ddp.composed import BackendReduce, ComposedHierarchical, require_equal_nodes
from ddp.device import Line, line_of
from ddp.errors import UsageError
from ddp.executor import Collective, NoCollective, make_collective
from ddp.fabric import Fabric
from ddp.membership import Membership, PrivateGroup
from ddp.native import MakeGroup, gloo_groups, nccl_groups
from ddp.options import ON_GPU, Options
from ddp.plan import ReductionPlan

KINDS = ("cpu", "cuda")


def device_of(module: nn.Module) -> torch.device:
    """The device of its parameters; the CPU where it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def check_one_device(module: nn.Module) -> None:
    """Raises UsageError unless all of it is on the CPU, or all of it on one GPU."""
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        first_name, first = named[0]
        if tensor.device.type not in KINDS:
            raise UsageError(
                f"{name!r} is on {tensor.device}: only the CPU and NVIDIA GPUs reduce gradients"
            )
        if tensor.device != first.device:
            raise UsageError(
                f"{name!r} is on {tensor.device} and {first_name!r} on {first.device}: a rank "
                "trains on one device; move the whole module there before wrapping it"
            )


def check_algorithm(device: torch.device, options: Options, *, registered: bool) -> None:
    """Raises UsageError for an algorithm that `device` has not; a caller's own Collective may do
    what it can."""
    if device.type == "cpu" or not registered:
        return
    if options.algorithm not in ON_GPU:
        raise UsageError(
            f"algorithm={options.algorithm!r} sends messages of its own, from the CPU only, and "
            f"the module is on {device}: use algorithm='hierarchical' or 'native' there"
        )
    if options.segments not in ("auto", 1):
        raise UsageError(
            f"segments={options.segments!r} on {device}: NCCL cuts buckets itself; leave it out"
        )
    if options.transport != "sockets" or not options.shared_memory:
        raise UsageError(
            f"transport={options.transport!r}, shared_memory={options.shared_memory} on {device}: "
            "NCCL moves bytes itself; leave them out"
        )
    if not dist.is_nccl_available():
        raise UsageError(f"the module is on {device}, and this torch was built without NCCL")


def check_fabric(device: torch.device, options: Options, fabric: Fabric) -> None:
    """Raises UsageError for a fabric on which the algorithm cannot run on `device`."""
    if device.type != "cpu" and options.algorithm == ComposedHierarchical.name:
        require_equal_nodes(fabric)


def groups_for(device: torch.device, membership: Membership) -> MakeGroup:
    """Makes groups of the backend that reduces on `device`."""
    make = partial(nccl_groups, device) if device.type == "cuda" else gloo_groups
    return make(PrefixStore("native", membership.store), membership.rank, membership.timeout_s)


def open_device(
    device: torch.device,
    membership: Membership,
    group: PrivateGroup,
    why_stopped: Callable[[], str | None],
) -> Line:
    """The line of work on `device`; with `group` able to reach what is there."""
    line = line_of(device, membership.timeout_s, why_stopped)
    if not line.on_host:
        group.take_device(groups_for(device, membership), line)
    return line


def open_transport(group: PrivateGroup, fabric: Fabric, options: Options) -> None:
    """Connect the ranks by sockets of our own, where the options say so; all of them must call it.

    Raises TransportError.
    """
    if group.on_host and options.transport == "sockets":
        group.open_transport(fabric, shares_memory=options.shared_memory)


def collective_of(
    options: Options, plan: ReductionPlan, fabric: Fabric, group: PrivateGroup
) -> Collective:
    """What carries out the algorithm of `options`, on the device that `group` has taken."""
    name = options.algorithm
    if group.on_host:
        schedule = plan.schedule()
        return make_collective(name, schedule, group.rank, fabric, group, options.timeout_s)
    if name == NoCollective.name:
        return NoCollective()
    if name == ComposedHierarchical.name:
        return ComposedHierarchical(fabric, group.rank, group.make_native)
    return BackendReduce(group.everybody)
