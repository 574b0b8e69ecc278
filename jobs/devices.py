"""On what each rank computes: the CPU, or a GPU of its own among those that it sees.

Owns the choice, what is refused, and what is written down of a GPU. Nothing here touches CUDA
before a rank asks (`seen_by`), which is after its process was forked. torch is imported only then.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ddp.options import ON_GPU
from jobs.errors import WorkerError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from jobs.argument import RankArgument
    from jobs.phases import Times
    from jobs.sections import DdpSpec

Asked = Literal["auto", "cpu", "cuda"]
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_RULE = f"GPUs reduce by NCCL: algorithm {', '.join(ON_GPU)}, our wrapper, no hook"
GPU_FIX = ("use algorithm hierarchical or native, with nothing else set", "write device: cpu")
OWN_RULE = "each rank has a GPU of its own"
CPU_FIX = "write device: cpu"


@dataclass(frozen=True)
class DeviceFacts:
    """What one rank sees of GPUs. `index`: the one it would take; None: none is left for it."""

    where: str
    cuda: bool
    nccl: bool
    visible: int
    visible_devices: str | None
    ranks: int
    index: int | None
    uuid: str | None


@dataclass(frozen=True)
class RankDevice:
    """Where one rank computes: on the GPU `facts` tell of, else on the CPU, for `reason`."""

    asked: Asked
    facts: DeviceFacts | None
    reason: str | None

    @property
    def gpu(self) -> "torch.device | None":
        """The GPU; None on the CPU."""
        if self.facts is None or self.facts.index is None:
            return None
        import torch

        return torch.device("cuda", self.facts.index)

    def take(self, module: "nn.Module") -> None:
        """Compute there from now on, and bring the model there."""
        gpu = self.gpu
        if gpu is not None:
            import torch

            torch.cuda.set_device(gpu)
            module.to(gpu)

    def times(self) -> "Times":
        """The moments of what it computes."""
        from jobs.phases import HostTimes

        gpu = self.gpu
        if gpu is None:
            return HostTimes()
        from ddp.device import CudaRuntime
        from jobs.devicetime import DeviceTimes

        return DeviceTimes(CudaRuntime(gpu))

    def to_json(self) -> dict[str, Any]:
        """The keys of the records' header."""
        gpu = self.gpu
        return {
            "device": str(gpu) if gpu else "cpu",
            "device_reason": self.reason,
            "gpu": gpu_facts(self.facts.uuid) if gpu and self.facts else None,
            "determinism": determinism() if gpu else None,
        }


def why_not_on_gpus(spec: "DdpSpec", node_of: Sequence[int] = ()) -> str | None:
    """Why GPUs cannot run this job, whatever there is of them; None where they can."""
    sizes = sorted(set(Counter(node_of).values()))
    for fits, reason in (
        (spec.wrapper == "ddplab", f"ddp.wrapper {spec.wrapper} runs on the CPU only"),
        (spec.hook is None, "ddp.hook runs on the CPU only"),
        (spec.algorithm in ON_GPU, f"algorithm {spec.algorithm} sends from the CPU only"),
        (spec.segments in ("auto", 1), f"ddp.segments {spec.segments}: NCCL cuts buckets itself"),
        (
            spec.algorithm != "hierarchical" or len(sizes) < 2,
            f"hierarchical needs as many ranks on every node, and there are {sizes}",
        ),
    ):
        if not fits:
            return reason
    return None


def choose(asked: Asked, ranks: Sequence[DeviceFacts]) -> str | None:
    """Why the ranks compute on the CPU; None: each takes its GPU.

    Pure, so that all ranks choose alike. Raises WorkerError where cuda was asked for.
    """
    problem = next(filter(None, map(_problem, ranks)), None) or _shared(ranks)
    if problem is None:
        return None
    message, fix = problem
    if asked == "cuda":
        raise WorkerError(f"device cuda: {message}", rule=OWN_RULE, fix=(fix, CPU_FIX))
    return message


def _problem(rank: DeviceFacts) -> tuple[str, str] | None:
    """What is wrong with one rank's GPU, and the fix."""
    if not rank.cuda:
        return f"{rank.where}: torch was built without CUDA", "install torch for CUDA there"
    if not rank.nccl:
        return f"{rank.where}: torch was built without NCCL", "install torch with NCCL there"
    if rank.visible_devices is not None and not rank.visible_devices.strip():
        return f"{rank.where}: {VISIBLE} is empty", f"leave {VISIBLE} out, or name GPUs in it"
    if not rank.visible:
        return f"{rank.where}: no GPU is visible", "see there what nvidia-smi says"
    if rank.index is None:
        return (
            f"{rank.where}: {rank.visible} GPUs are visible, and {rank.ranks} ranks run there",
            f"start {rank.visible} ranks on each node",
        )
    return None


def _shared(ranks: Sequence[DeviceFacts]) -> tuple[str, str] | None:
    seen: dict[str, DeviceFacts] = {}
    for rank in ranks:
        if rank.uuid is None:
            continue
        first = seen.setdefault(rank.uuid, rank)
        if first is not rank:
            return (
                f"{first.where} and {rank.where} would both run on GPU {rank.uuid}",
                f"start fewer ranks on each node, or let {VISIBLE} give each rank another GPU",
            )
    return None


class Cuda(Protocol):
    """What is asked of torch."""

    def is_built(self) -> bool: ...

    def has_nccl(self) -> bool: ...

    def count(self) -> int:
        """GPUs that this process sees."""

    def uuid(self, index: int) -> str | None: ...


class TorchsCuda:
    """torch itself; `uuid` is the first call that starts CUDA in this process."""

    def is_built(self) -> bool:
        import torch

        return torch.version.cuda is not None

    def has_nccl(self) -> bool:
        import torch.distributed as dist

        return dist.is_nccl_available()

    def count(self) -> int:
        import torch

        return torch.cuda.device_count()

    def uuid(self, index: int) -> str | None:
        import torch

        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        return None if uuid is None else f"GPU-{uuid}"


def seen_by(
    told: "RankArgument",
    environment: Mapping[str, str] = os.environ,
    cuda: Cuda | None = None,
) -> DeviceFacts:
    """What this rank sees: GPU k for the k-th rank of its node, or the only one where each rank is
    shown one of its own."""
    cuda = cuda or TorchsCuda()
    built, ranks = cuda.is_built(), told.node_of.count(told.node)
    visible = cuda.count() if built else 0
    index = told.local_rank if told.local_rank < visible else 0 if visible == 1 else None
    return DeviceFacts(
        where=f"rank {told.rank} ({told.node_name})",
        cuda=built,
        nccl=built and cuda.has_nccl(),
        visible=visible,
        visible_devices=environment.get(VISIBLE),
        ranks=ranks,
        index=index,
        uuid=None if index is None else cuda.uuid(index),
    )


@dataclass(frozen=True)
class _Gpu:
    """What the driver says of a GPU; None where it does not."""

    uuid: str | None
    name: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    pci: str | None = None


def gpu_facts(uuid: str | None, nvml: Any = None) -> dict[str, Any]:
    """Of the GPU with this uuid, by nvidia-ml-py where that is installed and a driver answers."""
    try:
        nvml = nvml or import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, no driver, or one that does not fit
        return asdict(_Gpu(uuid))
    try:
        return asdict(_asked_of(nvml, uuid))
    finally:
        nvml.nvmlShutdown()


def _asked_of(nvml: Any, uuid: str | None) -> _Gpu:
    handle = _said(lambda: nvml.nvmlDeviceGetHandleByUUID(uuid))
    return _Gpu(
        uuid,
        name=_said(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        driver=_said(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        memory_bytes=_said(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        power_limit_w=_said(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        ecc=_said(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        pci=_said(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
    )


def _said(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:  # a card without ECC, say, or without a power limit
        return None


def _text(said: str | bytes) -> str:
    return said.decode() if isinstance(said, bytes) else said


def determinism() -> dict[str, Any]:
    """What decides on a GPU whether the same step gives the same bits."""
    import torch

    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
