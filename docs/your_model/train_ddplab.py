"""A training script for torch's DistributedDataParallel, as such scripts usually are.

torchrun --standalone --nproc-per-node=2 train.py --checkpoint /tmp/checkpoint.pt
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from ddplab import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

FEATURES, CLASSES, SAMPLES = 20, 4, 1200


def make_data() -> tuple[TensorDataset, TensorDataset]:
    """Points around the centre of their class; the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    points = centres[labels] + 1.5 * torch.randn(SAMPLES, FEATURES, generator=generator)
    return random_split(TensorDataset(points, labels), [999, 201], generator)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def sum_over_ranks(value: float, device: torch.device) -> float:
    total = torch.tensor(value, device=device)
    dist.all_reduce(total)
    return total.item()


def train_epoch(model, loader, optimizer, device) -> float:
    model.train()
    total = 0.0
    for points, labels in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(points.to(device)), labels.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    return sum_over_ranks(total / len(loader), device) / dist.get_world_size()


def share_of(dataset: Dataset, rank: int, num_ranks: int) -> Subset:
    """Every sample on one rank: a DistributedSampler would repeat some, which are counted twice."""
    return Subset(dataset, range(rank, len(dataset), num_ranks))


@torch.no_grad()
def evaluate(model, loader, num_samples: int, device) -> float:
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
    return sum_over_ranks(right, device) / num_samples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", type=Path)
    arguments = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    torch.manual_seed(0)

    train_set, test_set = make_data()
    sampler = DistributedSampler(train_set, shuffle=True, seed=0)
    loader = DataLoader(train_set, batch_size=25, sampler=sampler)
    own_tests = share_of(test_set, rank, dist.get_world_size())
    test_loader = DataLoader(own_tests, batch_size=100)

    model = Net().to(device)
    model = DDP(model, device_ids=[local_rank] if cuda else None, algorithm="hierarchical")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first_epoch = 0
    if arguments.checkpoint and arguments.checkpoint.exists():
        state = torch.load(arguments.checkpoint, map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, device)
        accuracy = evaluate(model.module, test_loader, len(test_set), device)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, accuracy {accuracy:.3f}", flush=True)
            if arguments.checkpoint:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "epoch": epoch}, arguments.checkpoint)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
