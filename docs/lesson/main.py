"""Data-parallel training in one file: broadcast once, add up gradients after backward, descend.

Trains a small model twice, in one process and on 4 ranks (CPU, gloo), and shows after every step
that all of them hold the same parameters, byte for byte: python3 docs/lesson/main.py
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

SEED = 7
WORLD_SIZE = 4
NUM_SAMPLES, FEATURES, WIDTH = 256, 16, 32
BATCH, EPOCHS, LEARNING_RATE = 8, 2, 0.2  # a batch: the samples of one rank in one step
TOLERANCE = 1e-6  # between a loss over one large batch and the mean of the ranks' losses


class MiniMLP(nn.Sequential):
    """Three linear layers: (batch, FEATURES) -> (batch, WIDTH) -> (batch, WIDTH) -> (batch, 1)."""

    def __init__(self) -> None:
        hidden = nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        super().__init__(*hidden, nn.Linear(WIDTH, 1))


class DistributedDataParallel(nn.Module):
    """`model`, whose gradients are the mean over all ranks once `sync_grads` was called.

    A hook on each parameter puts its gradient into one bucket as backward computes it. Several
    backwards add up, as gradients do: call `sync_grads` after the last, and only it sends.
    """

    def __init__(self, model: nn.Module, world_size: int) -> None:
        super().__init__()
        self.model, self.world_size = model, world_size
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)  # every rank starts where rank 0 does
        parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        self.bucket = torch.zeros(sum(sizes))
        parts = zip(self.bucket.split(sizes), parameters, strict=True)
        self.views = [part.view_as(parameter) for part, parameter in parts]
        self.ready: set[int] = set()
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            for buffer in self.model.buffers():  # such as BatchNorm's; this model has none
                dist.broadcast(buffer, src=0)
        return self.model(x)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        self.views[index].copy_(parameter.grad)
        self.ready.add(index)

    def sync_grads(self) -> None:
        """Sum the bucket over all ranks, divide by their number, hand the means out."""
        names = [name for name, _ in self.model.named_parameters()]
        unused = [name for index, name in enumerate(names) if index not in self.ready]
        if unused:  # this rank would send what the last step left in the bucket
            raise RuntimeError(f"no gradient reached {', '.join(unused)} in this step")
        ring_all_reduce(self.bucket)
        self.bucket.div_(self.world_size)  # a mean: the learning rate holds for any world size
        for view, parameter in zip(self.views, self.model.parameters(), strict=True):
            parameter.grad.copy_(view)
        self.ready.clear()


def ring_all_reduce(bucket: Tensor) -> None:
    """Sum `bucket` over all ranks, in place: one time round the ring to add, one to share.

    `dist.all_reduce(bucket)` does the same, but in an order of its own, and float sums in another
    order are other bytes. Here chunk c is added up from rank c onwards, so it can be repeated.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = bucket.tensor_split(size)
    hops = range(size - 1)
    for offset, adds in [*((-hop, True) for hop in hops), *((1 - hop, False) for hop in hops)]:
        mine, previous = chunks[(rank + offset) % size], chunks[(rank + offset - 1) % size]
        received = torch.empty_like(previous)
        sending = dist.isend(mine, (rank + 1) % size)
        dist.recv(received, (rank - 1) % size)
        previous.copy_(previous + received if adds else received)
        sending.wait()


def dataset() -> tuple[Tensor, Tensor]:
    """Inputs (NUM_SAMPLES, FEATURES) and what they should give (NUM_SAMPLES, 1)."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(NUM_SAMPLES, FEATURES, generator=generator)
    return inputs, torch.tanh(inputs @ torch.randn(FEATURES, 1, generator=generator))


def batches(rank: int, world_size: int) -> Iterator[Tensor]:
    """Indices of the samples of each step of `rank`: its share of one order that all ranks know."""
    sampler = DistributedSampler(range(NUM_SAMPLES), world_size, rank, shuffle=True, seed=SEED)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # another order in each epoch, the same on every rank
        yield from torch.tensor(list(sampler)).split(BATCH)


def loss_of(model: nn.Module, samples: tuple[Tensor, Tensor], indices: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(samples[0][indices]), samples[1][indices])


def descend(model: nn.Module) -> None:
    with torch.no_grad():  # what torch.optim.SGD does
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=LEARNING_RATE)


def checksum(model: nn.Module) -> str:
    """Of every byte of every parameter."""
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(bytes(flat.view(torch.uint8).tolist())).hexdigest()[:12]


def worker(rank: int, world_size: int, folder: str) -> None:
    """What each rank runs; its losses and checksums go to a file in `folder`."""
    torch.set_num_threads(1)  # sums inside a layer depend on it
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world_size)
    torch.manual_seed(SEED + rank)  # another start on each rank, so that the broadcast must work
    model, samples, rows = MiniMLP(), dataset(), []
    ddp = DistributedDataParallel(model, world_size)
    for indices in batches(rank, world_size):
        model.zero_grad()
        loss = loss_of(ddp, samples, indices)
        loss.backward()
        ddp.sync_grads()
        descend(model)
        rows.append((loss.item(), checksum(model)))
    Path(folder, f"rank{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def ring_sum(buckets: Sequence[Tensor]) -> Tensor:
    """What `ring_all_reduce` gives every rank, from all their buckets."""
    size = len(buckets)
    cuts = [bucket.tensor_split(size) for bucket in buckets]
    routes = [[(chunk + hop) % size for hop in range(size)] for chunk in range(size)]
    return torch.cat([reduce(torch.add, [cuts[r][c] for r in routes[c]]) for c in range(size)])


def _reference_single_process_loop(world_size: int) -> list[tuple[float, str]]:
    """One process, the ranks' batches in turn. The loss is that of a step's samples at once."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model, samples, rows = MiniMLP(), dataset(), []
    sizes = [parameter.numel() for parameter in model.parameters()]
    for step in zip(*(batches(rank, world_size) for rank in range(world_size)), strict=True):
        loss = loss_of(model, samples, torch.cat(step)).item()
        buckets = []
        for indices in step:
            model.zero_grad()
            loss_of(model, samples, indices).backward()
            buckets.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        means = (ring_sum(buckets) / world_size).split(sizes)
        for parameter, mean in zip(model.parameters(), means, strict=True):
            parameter.grad = mean.view_as(parameter)
        descend(model)
        rows.append((loss, checksum(model)))
    return rows


def main() -> int:
    """Train both ways and print the table; 0 where every step is equal."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (WORLD_SIZE, folder), WORLD_SIZE)
        ranks = [json.loads(file.read_text()) for file in Path(folder).glob("rank*.json")]
    many = f"{WORLD_SIZE} ranks"
    print(f"step  loss single  loss {many}  difference  single        {many:12}  equal")
    num_equal = 0
    steps = list(zip(_reference_single_process_loop(WORLD_SIZE), *ranks, strict=True))
    for number, ((single, wanted), *found) in enumerate(steps, 1):
        loss = sum(each for each, _ in found) / WORLD_SIZE
        sums = sorted({each for _, each in found})
        equal = sums == [wanted] and abs(loss - single) <= TOLERANCE
        num_equal += equal
        words = f"{number:4}  {single:11.6f}  {loss:12.6f}  {abs(loss - single):10.1e}"
        print(f"{words}  {wanted}  {' '.join(sums)}  {'yes' if equal else 'NO'}")
    print(f"{num_equal} of {len(steps)} steps: {many} hold the bytes of one process")
    return int(num_equal < len(steps))


if __name__ == "__main__":
    sys.exit(main())
