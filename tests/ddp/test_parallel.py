"""DistributedDataParallel in real processes: gradients are the mean, under every kind of use."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddp.fabric import Fabric
from ddp.parallel import DistributedDataParallel
from tests.ddp.samples import as_lists, gradients, integers, linear, local_gradients

TWO_BY_TWO = Fabric((0, 0, 1, 1))


def means(per_rank: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(column)).mean(0) for column in zip(*per_rank, strict=True)]


def test_every_algorithm_gives_the_mean_and_not_the_sum(ranks: Any) -> None:
    cases = [
        ("ring", "contiguous"),
        ("ring", "interleaved"),
        ("hierarchical", "contiguous"),
        ("parameter_server", "contiguous"),
        ("native", "contiguous"),
    ]

    def body(rank: int) -> list[tuple[Any, Any]]:
        found = []
        for algorithm, order in cases:
            module = linear(rank)
            wrapped = DistributedDataParallel(
                module, algorithm=algorithm, ring_order=order, fabric=TWO_BY_TWO
            )
            inputs = integers(rank, 4, 3)
            local = local_gradients(module, inputs)
            wrapped(inputs).sum().backward()
            found.append((as_lists(local), as_lists(gradients(module))))
            wrapped.close()
        return found

    values = ranks.run(4, body)
    for case in range(len(cases)):
        local = [[torch.tensor(g) for g in values[rank][case][0]] for rank in range(4)]
        assert not torch.equal(local[0][0], local[1][0]), "a test whose ranks agree proves nothing"
        wanted = as_lists(means(local))
        assert wanted != as_lists([4 * g for g in means(local)])
        for rank in range(4):
            assert values[rank][case][1] == wanted


def test_accumulation_sums_micro_batches_then_reduces_once(ranks: Any) -> None:
    def body(rank: int) -> tuple[list[Any], int, list[Any], list[int]]:
        module = linear(rank)
        wrapped = DistributedDataParallel(module, algorithm="ring")
        batches = [integers(rank + 4 * index, 2, 3) for index in range(3)]
        local = [torch.zeros_like(p) for p in module.parameters()]
        for batch in batches:
            local = [a + b for a, b in zip(local, local_gradients(module, batch), strict=True)]
        counts = []
        for _ in range(2):  # gradients dropped (None) and then zeroed in place
            with wrapped.no_sync():
                for batch in batches[:-1]:
                    wrapped(batch).sum().backward()
            before = len(wrapped.communication().buckets)
            wrapped(batches[-1]).sum().backward()
            counts += [before, len(wrapped.communication().buckets)]
            found = as_lists(gradients(module))
            module.zero_grad(set_to_none=len(counts) == 2)
        wrapped.close()
        return as_lists(local), len(wrapped.plan.buckets), found, counts

    values = ranks.run(2, body)
    wanted = as_lists(means([[torch.tensor(g) for g in value[0]] for value in values]))
    for _, num_buckets, found, counts in values:
        assert found == wanted
        assert counts == [0, num_buckets, 0, num_buckets]


def test_the_forward_decides_whether_a_backward_synchronises(ranks: Any) -> None:
    """B02: never a half-synchronised bucket."""

    def body(rank: int) -> tuple[list[Any], list[Any], list[Any]]:
        module = linear(rank)
        wrapped = DistributedDataParallel(module, algorithm="ring")
        inputs = integers(rank, 4, 3)
        local = as_lists(local_gradients(module, inputs))
        with wrapped.no_sync():
            loss = wrapped(inputs).sum()
        loss.backward()
        forward_inside = as_lists(gradients(module))
        module.zero_grad()
        loss = wrapped(inputs).sum()
        with wrapped.no_sync():
            loss.backward()
        backward_inside = as_lists(gradients(module))
        wrapped.close()
        return local, forward_inside, backward_inside

    values = ranks.run(2, body)
    mean = as_lists(means([[torch.tensor(g) for g in value[0]] for value in values]))
    for local, forward_inside, backward_inside in values:
        assert forward_inside == local != mean
        assert backward_inside == mean


def test_second_backward_is_reduced_and_autograd_grad_is_local(ranks: Any) -> None:
    """B12: with values 3 and 6 a mean of 4.5 each time, never a mixture."""

    def body(rank: int) -> tuple[float, float, float]:
        module = nn.Linear(1, 1, bias=False)
        wrapped = DistributedDataParallel(module, algorithm="ring")
        loss = wrapped(torch.tensor([[3.0 * (rank + 1)]])).sum()
        (alone,) = torch.autograd.grad(loss, module.weight, retain_graph=True)
        loss.backward(retain_graph=True)
        assert module.weight.grad is not None
        once = float(module.weight.grad)
        loss.backward()
        twice = float(module.weight.grad)
        wrapped.close()
        return float(alone), once, twice

    assert ranks.run(2, body) == [(3.0, 4.5, 9.0), (6.0, 4.5, 9.0)]


class Odd(nn.Module):
    """Shared weights, a complex one, an empty one, a frozen one and two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.wave = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
        self.empty = nn.Parameter(torch.empty(0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.coarse = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 1.0]]))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.second(self.first(inputs)) * self.frozen
        phase = (torch.complex(inputs, inputs + 1) * self.wave).abs().square()
        return (hidden + phase + self.coarse.float() * inputs).sum()


def test_odd_parameters_equal_one_process(ranks: Any) -> None:
    """B05, B06, B07: shared, complex, empty and frozen parameters, and dtypes apart."""
    data = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]])]

    def body(rank: int) -> dict[str, Any]:
        module = Odd()
        wrapped = DistributedDataParallel(module, algorithm="hierarchical")
        wrapped(data[rank]).backward()
        dtypes = {bucket.dtype for bucket in wrapped.plan.buckets}
        assert dtypes == {"float32", "complex64", "bfloat16"}
        assert module.frozen.grad is None
        wrapped.close()
        return {n: p.grad.tolist() for n, p in module.named_parameters() if p.grad is not None}

    single = [Odd(), Odd()]
    for module, inputs in zip(single, data, strict=True):
        module(inputs).backward()
    pairs = zip(single[0].named_parameters(), single[1].parameters(), strict=True)
    wanted = {
        name: ((one.grad + other.grad) / 2).tolist()
        for (name, one), other in pairs
        if one.grad is not None and other.grad is not None
    }
    for found in ranks.run(2, body):
        assert {name: found[name] for name in wanted} == wanted


def test_separate_gradients_where_views_are_not_wanted(ranks: Any) -> None:
    def body(rank: int) -> tuple[bool, list[Any]]:
        module = linear(rank)
        wrapped = DistributedDataParallel(module, gradient_as_bucket_view=False)
        wrapped(integers(rank, 4, 3)).sum().backward()
        kept = module.weight.grad
        found = as_lists(gradients(module))
        module.zero_grad()
        wrapped(integers(rank + 5, 4, 3)).sum().backward()
        wrapped.close()
        assert kept is not None
        return kept.tolist() == found[0], found

    values = ranks.run(2, body)
    assert values[0] == values[1]
    assert values[0][0], "a gradient that was kept must not change"


class Checkpointed(nn.Module):
    """B13: a layer that is computed again in backward, `times` over."""

    def __init__(self, rank: int, times: int, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear(rank, 3, 3), linear(rank, 3, 3), linear(rank, 3, 2)])
        self.times = times
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layers[0](inputs)
        for _ in range(self.times):
            hidden = checkpoint(self.layers[1], hidden, use_reentrant=self.reentrant)
        result: Tensor = self.layers[2](hidden)
        return result


def test_checkpointed_layers(ranks: Any) -> None:
    """Not reentrant works however often; reentrant works for a layer used once."""
    importlib.import_module("torch._dynamo")  # checkpoint imports it: once here, not in each rank
    cases = [(2, False), (1, True)]

    def body(rank: int) -> list[tuple[list[Any], list[Any]]]:
        found = []
        for times, reentrant in cases:
            module = Checkpointed(rank, times, reentrant)
            wrapped = DistributedDataParallel(module, algorithm="ring", per_parameter=True)
            inputs = integers(rank, 4, 3)
            local = as_lists(local_gradients(module, inputs))
            wrapped(inputs).sum().backward()
            found.append((local, as_lists(gradients(module))))
            wrapped.close()
        return found

    values = ranks.run(2, body)
    for case in range(len(cases)):
        wanted = means([[torch.tensor(g) for g in value[case][0]] for value in values])
        assert [value[case][1] for value in values] == [as_lists(wanted)] * 2
