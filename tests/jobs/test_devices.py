"""On what ranks compute: the choice, its refusals, what is told of a GPU. No GPU is needed."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from ddp.options import ON_GPU
from ddp.placing import check_algorithm
from jobs import agree
from jobs.agree import agree_on_device
from jobs.devices import DeviceFacts, RankDevice, choose, gpu_facts, seen_by, why_not_on_gpus
from jobs.errors import WorkerError
from jobs.phases import HostTimes
from jobs.predict import why_unpredicted
from jobs.sections import DdpSpec
from jobs.spec import JobSpec


def facts(rank: int = 0, **changes: Any) -> DeviceFacts:
    seen = DeviceFacts(f"rank {rank} (node0)", True, True, 4, None, 4, rank, f"GPU-{rank}")
    return replace(seen, **changes)


def test_each_rank_takes_its_own_gpu() -> None:
    ranks = [facts(rank) for rank in range(4)]
    assert choose("auto", ranks) is None
    assert choose("cuda", ranks) is None


WRONG = (
    ({"cuda": False, "visible": 0, "index": None}, "rank 1 (node0): torch was built without CUDA"),
    ({"nccl": False}, "rank 1 (node0): torch was built without NCCL"),
    (
        {"visible": 0, "index": None, "visible_devices": ""},
        "rank 1 (node0): CUDA_VISIBLE_DEVICES is empty",
    ),
    ({"visible": 0, "index": None}, "rank 1 (node0): no GPU is visible"),
    ({"visible": 3, "index": None}, "rank 1 (node0): 3 GPUs are visible, and 4 ranks run there"),
    ({"uuid": "GPU-0"}, "rank 0 (node0) and rank 1 (node0) would both run on GPU GPU-0"),
)


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=str)
def test_what_one_rank_lacks_keeps_all_on_the_cpu_or_is_refused(
    changes: dict[str, Any], told: str
) -> None:
    ranks = [facts(0), facts(1, **changes)]
    assert choose("auto", ranks) == told
    with pytest.raises(WorkerError) as caught:
        choose("cuda", ranks)
    assert str(caught.value).startswith(f"device cuda: {told}; each rank has a GPU of its own; ")
    assert str(caught.value).endswith(" or: write device: cpu")


class FakeCuda:
    def __init__(self, uuids: Sequence[str], *, built: bool = True) -> None:
        self.uuids, self.built = uuids, built

    def is_built(self) -> bool:
        return self.built

    def has_nccl(self) -> bool:
        return True

    def count(self) -> int:
        assert self.built
        return len(self.uuids)

    def uuid(self, index: int) -> str:
        return self.uuids[index]


def told(rank: int = 3, local_rank: int = 1, **job: Any) -> Any:
    return SimpleNamespace(
        rank=rank,
        local_rank=local_rank,
        node=1,
        node_name="node1",
        node_of=[0, 1, 0, 1],
        world_size=4,
        run_dir=None,
        run_id="run",
        job=JobSpec(name="a", **job),
    )


def test_a_rank_takes_the_gpu_of_its_place_on_the_node() -> None:
    seen = seen_by(told(), {"CUDA_VISIBLE_DEVICES": "4,7"}, FakeCuda(["GPU-4", "GPU-7"]))
    assert seen == DeviceFacts("rank 3 (node1)", True, True, 2, "4,7", 2, 1, "GPU-7")


def test_a_rank_that_is_shown_one_gpu_takes_it() -> None:
    """As SLURM and Ray show each rank its own; that two are not shown the same is seen by uuid."""
    assert (seen := seen_by(told(), {}, FakeCuda(["GPU-7"]))).index == 0
    assert seen.uuid == "GPU-7"
    assert seen_by(told(local_rank=2), {}, FakeCuda(["a", "b"])).index is None
    assert seen_by(told(), {}, FakeCuda([])).index is None
    without = seen_by(told(), {}, FakeCuda([], built=False))
    assert (without.cuda, without.nccl, without.visible) == (False, False, 0)


ON_CPU_ONLY = (
    ({"wrapper": "torch"}, "ddp.wrapper torch runs on the CPU only"),
    ({"hook": "my.py:hook"}, "ddp.hook runs on the CPU only"),
    ({"algorithm": "ring"}, "algorithm ring sends from the CPU only"),
    ({"segments": 4}, "ddp.segments 4: NCCL cuts buckets itself"),
)


@pytest.mark.parametrize(("keys", "told"), ON_CPU_ONLY, ids=str)
def test_a_job_that_gpus_cannot_run_is_refused_in_its_file(keys: dict[str, Any], told: str) -> None:
    ddp = DdpSpec(**keys)
    assert why_not_on_gpus(ddp) == told
    with pytest.raises(ValueError, match="device cuda: ") as caught:
        JobSpec(name="a", ddp=ddp, device="cuda")
    assert told in str(caught.value)
    assert JobSpec(name="a", ddp=ddp).device == "auto"


def test_a_job_says_cuda_where_gpus_can_run_it() -> None:
    for algorithm in ON_GPU:
        ddp = DdpSpec(algorithm=algorithm)
        JobSpec(name="a", ddp=ddp, device="cuda", expects_divergence=algorithm == "noop")
    assert why_not_on_gpus(DdpSpec(), [0, 0, 1]) == (
        "hierarchical needs as many ranks on every node, and there are [1, 2]"
    )
    assert why_not_on_gpus(DdpSpec(algorithm="native"), [0, 0, 1]) is None
    with pytest.raises(ValueError, match="'auto', 'cpu' or 'cuda'"):
        JobSpec(name="a", device="gpu")  # type: ignore[arg-type]


def test_ranks_choose_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lacks a GPU keeps all on the CPU; the store carries what each sees."""
    store = HashStore()
    for rank in range(4):
        lacks = {"visible": 0, "index": None} if rank == 2 else {}
        store.set(f"device/run/{rank}", json.dumps(vars(facts(rank, **lacks))))
    monkeypatch.setattr(agree, "seen_by", lambda _told: facts(3))
    device = agree_on_device(told(), store)
    assert device == RankDevice("auto", None, "rank 2 (node0): no GPU is visible")
    with pytest.raises(WorkerError, match="device cuda: rank 2"):
        agree_on_device(told(device="cuda"), store)
    store.set("device/run/2", json.dumps(vars(facts(2))))
    device = agree_on_device(told(), store)
    assert device == RankDevice("auto", facts(3), None)
    assert device.gpu == torch.device("cuda:3")


def test_nobody_is_asked_where_the_job_runs_on_the_cpu_anyway() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))  # nobody answers
    assert agree_on_device(told(device="cpu"), store) == RankDevice("cpu", None, None)
    ring = DdpSpec(algorithm="ring")
    assert agree_on_device(told(ddp=ring), store).reason == "algorithm ring sends from the CPU only"


def test_the_cpu_changes_nothing() -> None:
    device = RankDevice("auto", None, "no GPU")
    layer = nn.Linear(2, 2)
    device.take(layer)
    assert layer.weight.device.type == "cpu"
    assert isinstance(device.times(), HostTimes)
    assert device.to_json() == {
        "device": "cpu",
        "device_reason": "no GPU",
        "gpu": None,
        "determinism": None,
    }


class FakeNvml:
    def __init__(self, *, driver: bool = True) -> None:
        self.driver, self.open = driver, 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise RuntimeError("NVML: Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetName(self, _handle: str) -> bytes:  # noqa: N802
        return b"NVIDIA H200"

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=139 << 30)

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: str) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetEccMode(self, _handle: str) -> list[int]:  # noqa: N802
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetPciInfo(self, _handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(busId="0000:1B:00.0")


def test_what_the_driver_says_of_a_gpu() -> None:
    nvml = FakeNvml()
    assert gpu_facts("GPU-1", nvml) == {
        "uuid": "GPU-1",
        "name": "NVIDIA H200",
        "driver": "570.1",
        "memory_bytes": 139 << 30,
        "power_limit_w": 700.0,
        "ecc": None,
        "pci": "0000:1B:00.0",
    }
    assert nvml.open == 0


def test_without_a_driver_nothing_fails() -> None:
    seen = gpu_facts("GPU-1", FakeNvml(driver=False))
    assert (seen["uuid"], set(seen.values())) == ("GPU-1", {"GPU-1", None})
    assert gpu_facts("GPU-1")["uuid"] == "GPU-1"


def test_why_there_is_no_prediction_on_gpus() -> None:
    assert "NCCL" in why_unpredicted(DdpSpec(), None, on_gpu=True)


def test_nothing_starts_cuda_before_the_fork() -> None:
    """The agent imports this and forks: CUDA does not work in a child of a process that used it."""
    check = "import torch, jobs.worker, jobs.devices; print(torch.cuda.is_initialized())"
    ended = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "False\n"


def test_ddp_has_the_same_algorithms_on_a_gpu() -> None:
    def refusal(algorithm: str, **more: Any) -> str | None:
        given = {"segments": "auto", "transport": "sockets", "shared_memory": True, **more}
        options: Any = SimpleNamespace(algorithm=algorithm, **given)
        try:
            check_algorithm(torch.device("cuda", 0), options, registered=True)
        except ValueError as exc:
            return str(exc)
        return None

    def refuses(algorithm: str) -> bool:
        return "use algorithm='hierarchical' or 'native' there" in (refusal(algorithm) or "")

    names = ("hierarchical", "native", "noop", "ring", "parameter_server")
    assert [refuses(name) for name in names] == [False, False, False, True, True]
    assert "transport='torch'" in (refusal("native", transport="torch") or "")
    assert "shared_memory=False on cuda:0" in (refusal("native", shared_memory=False) or "")
