"""The algorithms under Hugging Face Accelerate, the real one: two processes, exact means."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp import UsageError, accelerate_kwargs

ROOT = Path(__file__).parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SCRIPT = """
import os

import torch
from accelerate import Accelerator
from ddp import accelerate_kwargs
from torch.nn.parallel import DistributedDataParallel

handler = accelerate_kwargs("hierarchical", bucket_cap_mb=1, timeout_s=20)
accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
layer = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
model, optimizer = accelerator.prepare(layer, optimizer)
assert isinstance(model, DistributedDataParallel)
inputs = torch.tensor([[1.0, 2.0, 4.0]]) * (1 + 2 * accelerator.process_index)
accelerator.backward(model(inputs).sum())
optimizer.step()
(state,) = handler.hook_states
plan = state.plan(model.module)
said = f"gradient {model.module.weight.grad.tolist()} bucket_cap_mb {model.bucket_bytes_cap >> 20}"
os.write(1, f"{said} plan {plan.algorithm}\\n".encode())  # both processes write to one pipe
accelerator.wait_for_everyone()
state.close()
accelerator.end_training()
"""


def test_every_prepared_model_is_reduced_by_the_algorithm(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *TORCHRUN, str(tmp_path / "script.py")],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    line = "gradient [[2.0, 4.0, 8.0]] bucket_cap_mb 1 plan hierarchical"
    assert done.stdout.count(line) == 2, done.stdout


def test_without_it_the_fix_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delitem(sys.modules, "accelerate.utils", raising=False)
    with pytest.raises(UsageError, match="install accelerate beside torch"):
        accelerate_kwargs()


def test_a_hook_of_accelerates_own_is_refused() -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    with pytest.raises(
        UsageError, match=r"accelerate_kwargs with comm_hook='fp16': a model has one"
    ):
        accelerate_kwargs("ring", comm_hook="fp16")
