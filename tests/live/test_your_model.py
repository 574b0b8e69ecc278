"""The script of docs/your-model.md under torchrun on loopback, before and after its two changes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.scraping import free_port

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "docs" / "your_model"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2")
TIMEOUT_S = 100
NODES = """
import torch, torch.distributed as dist
from ddplab import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 1), None, None, 0, bucket_cap_mb=None)
model(torch.full((1, 2), float(dist.get_rank() + 1))).sum().backward()
print("nodes", model.fabric.node_of, model.plan.algorithm, model.module.weight.grad.tolist())
dist.destroy_process_group()
"""
Processes = list["subprocess.Popen[str]"]


@pytest.fixture
def started() -> Iterator[Processes]:
    processes: Processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(started: Processes, *words: str | Path) -> None:
    started.append(
        subprocess.Popen(
            [sys.executable, *TORCHRUN, *map(str, words)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


def ended(started: Processes) -> list[str]:
    answers = [process.communicate(timeout=TIMEOUT_S) for process in started]
    for process, (out, err) in zip(started, answers, strict=True):
        assert process.returncode == 0, out + err
    return [out for out, _ in answers]


def test_two_changed_lines_give_the_same_training(started: Processes, tmp_path: Path) -> None:
    """Two ranks add in one way only: the same losses to the last digit shown, the same end."""
    import torch

    for name in ("train", "train_ddplab"):
        checkpoint = ("--checkpoint", tmp_path / f"{name}.pt")
        start(started, "--standalone", SCRIPTS / f"{name}.py", *checkpoint)
    stock, ours = ended(started)
    assert ours == stock
    losses = [float(line.split()[3].strip(",")) for line in ours.splitlines()]
    assert len(losses) == 3 and losses[2] < losses[0] / 2
    states = [torch.load(tmp_path / f"{name}.pt") for name in ("train", "train_ddplab")]
    first, second = (state["model"] for state in states)
    assert list(first) == list(second) and states[0]["epoch"] == states[1]["epoch"] == 2
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-6, atol=1e-7)


def test_two_agents_are_two_nodes(started: Processes, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NODES)
    where = ("--master-addr=127.0.0.1", f"--master-port={free_port()}", "--nnodes=2")
    for node in range(2):
        start(started, *where, f"--node-rank={node}", tmp_path / "script.py")
    lines = "".join(ended(started)).splitlines()
    assert lines == ["nodes (0, 0, 1, 1) hierarchical [[2.5, 2.5]]"] * 4
