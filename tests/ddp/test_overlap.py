"""Reduction during backward: order of time stamps, never durations."""

import copy
from dataclasses import dataclass
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.executor import Collective
from ddp.parallel import DistributedDataParallel
from ddp.timing import StepCommunication, Traffic

NUM_LAYERS = 5


class Slow(torch.autograd.Function):
    """Passes everything through; its backward sleeps."""

    @staticmethod
    def forward(_context: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        sleep(0.06)
        return gradient


class Layered(nn.Module):
    """Layers in registration order, so that buckets are complete in order; or the other way."""

    def __init__(self, *, backwards: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(NUM_LAYERS))
        self.backwards = backwards

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in reversed(self.layers) if self.backwards else self.layers:
            hidden = Slow.apply(layer(hidden))
        return hidden


@dataclass
class Step:
    communication: StepCommunication
    local: list[list[float]]
    reduced: list[list[float]]


def gradients(module: nn.Module) -> list[list[float]]:
    return [p.grad.flatten().tolist() for p in module.parameters() if p.grad is not None]


def step(rank: int, *, backwards: bool = False, **arguments: Any) -> Step:
    module = Layered(backwards=backwards)
    wrapped = DistributedDataParallel(module, per_parameter=True, **arguments)
    inputs = torch.full((2, 8), rank + 1.0)
    twin = copy.deepcopy(module)
    twin(inputs).sum().backward()
    wrapped(inputs).sum().backward()
    communication = wrapped.communication()
    empty = wrapped.communication()
    assert (empty.buckets, empty.exposed, empty.gradients_ready_ns) == ([], [], None)
    assert empty.traffic == Traffic(0, 0)
    wrapped.close()
    return Step(communication, gradients(twin), gradients(module))


def check_mean(steps: list[Step]) -> None:
    """A bucket that went too early would not hold the mean."""
    local = torch.tensor([step.local for step in steps])
    for each in steps:
        assert torch.allclose(torch.tensor(each.reduced), local.mean(0), rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "native"])
def test_first_buckets_end_before_backward_does(ranks: Any, algorithm: str) -> None:
    steps = ranks.run(2, lambda rank: step(rank, algorithm=algorithm))
    check_mean(steps)
    for communication in (each.communication for each in steps):
        buckets = communication.buckets
        assert [bucket.index for bucket in buckets] == list(range(NUM_LAYERS))
        assert all(b.ready_ns <= b.start_ns <= b.end_ns for b in buckets)
        assert buckets[0].end_ns < communication.gradients_ready_ns
        assert buckets[-1].ready_ns == communication.gradients_ready_ns
        exposed, *_ = communication.exposed  # then the buckets of the next steps
        assert communication.gradients_ready_ns <= exposed[0] < exposed[1]
        assert exposed[1] >= buckets[-1].end_ns
        assert [bucket.bytes for bucket in buckets] == [8 * 8 * 4] * NUM_LAYERS


def test_buckets_go_in_index_order_whatever_is_ready_first(ranks: Any) -> None:
    steps = ranks.run(2, lambda rank: step(rank, backwards=True))
    check_mean(steps)
    for communication in (each.communication for each in steps):
        buckets = communication.buckets
        assert [bucket.index for bucket in buckets] == list(range(NUM_LAYERS))
        assert [b.ready_ns for b in buckets] == sorted((b.ready_ns for b in buckets), reverse=True)
        assert min(b.start_ns for b in buckets) >= buckets[0].ready_ns


def test_without_overlap_everything_starts_after_backward(ranks: Any) -> None:
    steps = ranks.run(2, lambda rank: step(rank, overlap=False))
    check_mean(steps)
    for communication in (each.communication for each in steps):
        exposed, *_ = communication.exposed  # then the buckets of the next steps
        for bucket in communication.buckets:
            assert exposed[0] <= bucket.ready_ns <= bucket.start_ns
            assert bucket.start_ns <= bucket.end_ns <= exposed[1]
        assert exposed[0] >= communication.gradients_ready_ns


class Counting:
    """A caller's own collective, around another: what is handed to it, and when it returns."""

    name = "counting"

    def __init__(self, inner: Collective) -> None:
        self.inner = inner
        self.calls: list[tuple[int, int]] = []

    def all_reduce(self, buffer: Tensor, segments: int, bucket: int) -> Traffic:
        self.calls.append((bucket, segments))
        sleep(0.02)
        return self.inner.all_reduce(buffer, segments, bucket)


def test_a_collective_of_the_callers_own(ranks: Any) -> None:
    def body(rank: int) -> tuple[list[tuple[int, int]], StepCommunication]:
        wrapped = DistributedDataParallel(Layered(), per_parameter=True, segments=2)
        counting = Counting(wrapped.collective)
        with wrapped.reduce_with(counting):
            wrapped(torch.full((2, 8), rank + 1.0)).sum().backward()
        communication = wrapped.communication()
        wrapped.close()
        return counting.calls, communication

    for calls, communication in ranks.run(2, body):
        assert calls == [(index, 2) for index in range(NUM_LAYERS)]
        assert all(b.end_ns - b.start_ns >= 20_000_000 for b in communication.buckets)
        assert communication.traffic.intra_node_bytes == NUM_LAYERS * (64 + 4) * 4
        assert communication.traffic.inter_node_bytes == 0


def test_calibration_is_one_for_all_ranks(ranks: Any) -> None:
    def body(rank: int) -> Any:
        from ddp.fabric import Fabric

        found = []
        for node_of in ((0, 0, 1), (0, 1, 2), (0, 0, 0)):
            wrapped = DistributedDataParallel(nn.Linear(2, 2), fabric=Fabric(node_of))
            found.append(wrapped.calibrate())
            wrapped(torch.full((1, 2), float(rank))).sum().backward()
            wrapped.close()
        return found

    values = ranks.run(3, body)
    assert values[0] == values[1] == values[2]
    for calibration, (has_inter, has_intra) in zip(
        values[0], ((True, True), (True, False), (False, True)), strict=True
    ):
        assert (calibration.alpha_inter_s is not None) == has_inter
        assert (calibration.alpha_intra_s is not None) == has_intra
        assert (calibration.intra_bytes_per_s is not None) == has_intra
        for value in (calibration.alpha_inter_s, calibration.alpha_intra_s):
            assert value is None or 0 < value < 1
