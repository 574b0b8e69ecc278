"""A training script as torchrun starts it, on any machines; docs/compose-by-hand.md runs it.

All that it takes from this project is the wrapper around the model.
"""

import hashlib
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp import DistributedDataParallel

NUM_WARMUP_STEPS = 3
NUM_STEPS = 12
WIDTH = 256
NIC = Path("/sys/class/net", os.environ.get("GLOO_SOCKET_IFNAME", "eth0"))


def batch(num_samples: int = 64) -> tuple[Tensor, Tensor]:
    """Random vectors, (num_samples, WIDTH), and how long each is."""
    x = torch.randn(num_samples, WIDTH)
    return x, x.norm(dim=1, keepdim=True)


def sent_bytes() -> int:
    """What has left this node by its link so far, by all its ranks."""
    return int((NIC / "statistics/tx_bytes").read_text())


def checksum(model: nn.Module) -> str:
    """One short text for all parameters, bit by bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:8]


def main() -> None:
    dist.init_process_group("gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.manual_seed(rank)  # every rank has data, and at first parameters, of its own
    layers = [nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 4 * WIDTH), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(4 * WIDTH, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps_s, sent_before = [], 0
    for step in range(NUM_WARMUP_STEPS + NUM_STEPS):
        if step == NUM_WARMUP_STEPS:
            sent_before = sent_bytes()
        began_s = time.perf_counter()
        x, length = batch()
        loss = (model(x) - length).square().mean()
        optimizer.zero_grad()
        loss.backward()  # returns with gradients that are the mean over all ranks
        optimizer.step()
        steps_s.append(time.perf_counter() - began_s)
        if rank == 0 and step % 7 == 0:
            sys.stdout.write(f"step {step:2}  loss {loss.item():.1f}\n")
    sent_a_step = (sent_bytes() - sent_before) / NUM_STEPS
    num_gradient_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    if local_rank == 0:
        sys.stdout.write(
            f"node {os.environ['GROUP_RANK']}: a step takes "
            f"{statistics.median(steps_s[NUM_WARMUP_STEPS:]) * 1e3:.0f} ms; gradients "
            f"{num_gradient_bytes / 1e6:.2f} MB, this node sent {sent_a_step / 1e6:.2f} MB\n"
        )
    sums: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(sums, checksum(model))
    if rank == 0:
        equal = "equal" if len(set(sums)) == 1 else "NOT EQUAL"
        sys.stdout.write(f"parameters {equal} on {len(sums)} ranks: {sums[0]}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
