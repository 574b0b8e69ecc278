"""The wrapper around gradients: state, buffers, subgroups, closing, where ranks live."""

import copy
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp.errors import ReductionFailed, UsageError
from ddp.executor import NoCollective
from ddp.membership import fabric_from, node_identity
from ddp.parallel import DistributedDataParallel
from tests.ddp.samples import as_lists, gradients, integers, linear, local_gradients


def test_initial_state_comes_from_rank_0(ranks: Any) -> None:
    def body(rank: int) -> tuple[Any, Any, str]:
        module = linear(rank)
        module.register_buffer("flags", torch.tensor([rank == 0, True]))
        module.register_buffer("count", torch.tensor(10 + rank))
        module.register_buffer("nothing", torch.empty(0))
        wrapped = DistributedDataParallel(module, algorithm="ring", broadcast_buffers=False)
        digest = wrapped.verify_parameters()
        wrapped.close()
        return module.weight.tolist(), [module.flags.tolist(), int(module.count)], digest

    values = ranks.run(2, body)
    assert values[0] == values[1]
    assert values[0][:2] == (integers(0, 2, 3).tolist(), [[True, True], 10])


class Counter(nn.Module):
    """B09: a buffer that is replaced, not written, in each forward."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("count", torch.tensor(start))
        self.seen: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(int(self.count))
        step = 1 if self.layer.weight.requires_grad and float(inputs.detach()[0, 0]) == 0 else 100
        self.count = self.count + step
        return self.layer(inputs)


def test_buffers_come_from_rank_0_in_training_only(ranks: Any) -> None:
    """B09, B10: also replaced ones; evaluation and no_sync send nothing, so one rank may."""

    def body(rank: int) -> tuple[list[int], int]:
        module = Counter(start=rank * 1_000)
        wrapped = DistributedDataParallel(module, algorithm="ring")
        for _ in range(2):
            wrapped(torch.full((1, 1), float(rank))).sum().backward()
        wrapped.communication()
        if rank == 0:
            with torch.no_grad():
                wrapped(torch.zeros(1, 1))
        exposed = len(wrapped.communication().exposed)
        wrapped.close()
        return module.seen, exposed

    assert ranks.run(2, body) == [([0, 1, 2], 0), ([0, 1], 0)]


def test_two_forwards_one_backward_with_batch_norm(ranks: Any) -> None:
    """B08: broadcasting between them must not trip autograd."""

    def body(rank: int) -> tuple[list[Any], list[Any]]:
        torch.manual_seed(rank)
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        wrapped = DistributedDataParallel(module, algorithm="ring")
        loss = wrapped(torch.randn(5, 3)).square().sum() + wrapped(torch.randn(5, 3)).sum()
        loss.backward()
        wrapped(torch.randn(5, 3))  # brings rank 0's statistics once more, then adds its own
        wrapped.close()
        return as_lists(gradients(module)), as_lists(list(module.buffers())[2:])

    values = ranks.run(2, body)
    assert values[0] == values[1]
    assert values[0][1] == [3]


def test_noop_and_reduce_with_keep_gradients_local(ranks: Any) -> None:
    def body(rank: int) -> tuple[list[Any], list[Any], list[Any]]:
        module = linear(rank)
        wrapped = DistributedDataParallel(module, algorithm="ring")
        inputs = integers(rank, 4, 3)
        local = as_lists(local_gradients(module, inputs))
        with wrapped.reduce_with(NoCollective()):
            wrapped(inputs).sum().backward()
            alone = as_lists(gradients(module))
        assert wrapped.collective.name == "ring"
        module.zero_grad()
        wrapped(inputs).sum().backward()
        wrapped.close()
        return local, alone, as_lists(gradients(module))

    values = ranks.run(2, body)
    for local, alone, together in values:
        assert alone == local != together
    assert values[0][2] == values[1][2]


def test_a_subgroup_and_a_second_wrapper_on_it(ranks: Any) -> None:
    """Only members take part; names in the store never meet those of an earlier wrapper."""

    def body(rank: int) -> list[Any]:
        pair = dist.new_group([1, 3])
        found: list[Any] = []
        if rank in (1, 3):
            for turn in range(2):
                module = linear(rank)
                wrapped = DistributedDataParallel(module, process_group=pair)
                wrapped(integers(rank + turn, 4, 3)).sum().backward()
                found.append(module.weight.grad.tolist())  # type: ignore[union-attr]
                wrapped.close()
                wrapped.close()
        elif rank == 0:
            try:
                DistributedDataParallel(linear(rank), process_group=pair)
            except UsageError as exc:
                found.append(str(exc))
        return found

    values = ranks.run(4, body)
    assert values[1] == values[3] != []
    assert "not in process_group" in values[0][0]


def test_a_wrapper_cannot_be_copied_and_says_when_it_is_closed(ranks: Any) -> None:
    def body(rank: int) -> list[str]:
        wrapped = DistributedDataParallel(linear(rank))
        messages = []
        try:
            copy.deepcopy(wrapped)
        except UsageError as exc:
            messages.append(str(exc))
        assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
        wrapped.close()
        try:
            wrapped(integers(rank, 4, 3))
        except ReductionFailed as exc:
            messages.append(str(exc))
        return messages

    copied, closed = ranks.run(1, body)[0]
    assert "wrapper.module" in copied
    assert "closed" in closed


def test_nodes_are_found_by_launcher_or_kernel_never_by_name() -> None:
    assert node_identity({"DDPLAB_NODE": "1", "GROUP_RANK": "5"}) == "DDPLAB_NODE=1"
    assert node_identity({"GROUP_RANK": "5", "HOSTNAME": "a"}) == "GROUP_RANK=5"
    kernel = node_identity({"HOSTNAME": "a"})
    assert kernel == node_identity({"HOSTNAME": "b"})
    assert str(os.stat("/proc/self/ns/net").st_ino) in kernel  # noqa: PTH116
    assert fabric_from(["GROUP_RANK=1", "GROUP_RANK=0", "GROUP_RANK=1"]).node_of == (1, 0, 1)
    assert fabric_from(["DDPLAB_NODE=b", "DDPLAB_NODE=a", "DDPLAB_NODE=b"]).node_of == (0, 1, 0)
