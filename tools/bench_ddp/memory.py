"""What each rank of the memory figure runs: one wrapper, in a process that has done nothing else.

`ours` and `stock` are called by the agent, each in fresh processes, since the kernel tells only the
most that a process ever held. What it held before the model was built is taken off.
"""

import ctypes
import json
from pathlib import Path
from typing import Any

import torch

from ddp import Fabric
from jobs.argument import RankArgument
from jobs.rendezvous import rendezvous
from tools.bench_ddp.ranks import report
from tools.bench_ddp.variants import MIB, Variant, set_up

STEPS = 3
SIZE: dict[str, Any] = {"layers": 32, "layer_bytes": 2 * MIB, "bucket_mb": 25.0}
"""Gradients that are large beside what the program itself needs."""
M_MMAP_THRESHOLD, LARGE_BYTES = -3, 2**16
SMALL: dict[str, Any] = {"layers": 2, "layer_bytes": 4096, "bucket_mb": 25.0}


def stock(argument: dict[str, Any]) -> None:
    hold(argument, None)


def ours(argument: dict[str, Any]) -> None:
    hold(argument, "hierarchical")


def hold(argument: dict[str, Any], algorithm: str | None) -> None:
    """Train a small model, which brings the program's own pages in, then the one that counts."""
    told = RankArgument.model_validate_json(json.dumps(argument))
    torch.set_num_threads(told.threads)
    # glibc: what is large goes back when it is freed; else where it lay is chance, by 64 MiB
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    with rendezvous(told):
        peak_bytes(told, algorithm, SMALL)
        before_bytes = memory_bytes("VmRSS")
        report(told, peak_bytes(told, algorithm, SIZE) - before_bytes)


def peak_bytes(told: RankArgument, algorithm: str | None, size: dict[str, Any]) -> int:
    """The most that this process has held once a model of this size has trained some steps."""
    variant = Variant("held", algorithm, forward_ms=0, backward_ms=0, **size)
    with set_up(variant, Fabric(tuple(told.node_of))) as trained:
        for _ in range(STEPS):
            trained.step()
        return memory_bytes("VmHWM")


def memory_bytes(key: str) -> int:
    """What the kernel says that this process holds (VmRSS), or held at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise SystemExit(f"the kernel's /proc/self/status has no {key}: memory cannot be measured")
