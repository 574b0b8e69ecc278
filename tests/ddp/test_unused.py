"""find_unused_parameters: parameters that get no gradient, on some ranks or on all."""

import importlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

from ddp.executor import NoCollective
from tests.ddp.oracle import Job, check_against_reference
from tests.ddp.routed import Routed, routed, routed_loss
from tests.ddp.samples import Branches, as_lists, message, the_one_text, wrap


@pytest.mark.parametrize(
    ("num_ranks", "overlap", "as_view", "dtype"),
    [
        (2, True, True, torch.float32),
        (2, False, False, torch.float64),
        (3, True, False, torch.bfloat16),
        (3, False, True, torch.float32),
    ],
)
def test_branches_equal_the_reference(
    ranks: Any, num_ranks: int, overlap: bool, as_view: bool, dtype: torch.dtype
) -> None:
    """Gradients dropped each step: where no rank has one, it stays None."""
    arguments = {
        "find_unused_parameters": True,
        "overlap": overlap,
        "gradient_as_bucket_view": as_view,
        "per_parameter": as_view,
        "algorithm": "ring" if overlap else "hierarchical",
    }
    job = Job(lambda: routed(dtype), routed_loss, num_steps=4, arguments=arguments)
    trained = check_against_reference(ranks, num_ranks, job)[0]
    last, right, middle, left = (slice(index, index + 2) for index in (0, 2, 4, 6))
    assert trained.gradients[1][right] == trained.gradients[1][left] == [None, None]
    assert [step[middle] for step in trained.gradients] == [[None, None]] * 4
    assert None not in trained.gradients[0][left] + trained.gradients[0][last]


@pytest.mark.parametrize(
    ("num_micro_steps", "set_to_none"), [(1, False), (2, False), (1, None), (2, None)]
)
def test_gradients_that_are_kept_equal_the_reference(
    ranks: Any, num_micro_steps: int, set_to_none: bool | None
) -> None:
    """Zeroed in place, or never; with accumulation a layer may be used in no_sync alone."""
    job = Job(
        lambda: routed(torch.float32),
        routed_loss,
        num_steps=4,
        num_micro_steps=num_micro_steps,
        set_to_none=set_to_none,
        arguments={"find_unused_parameters": True},
    )
    check_against_reference(ranks, 3, job)


def stale(wrapped: nn.Module, rank: int) -> list[Any]:
    """Two steps without zeroing: in the second no rank uses `left`, and only rank 0 `right`."""
    module: Any = wrapped.module
    for used in ("left right", "right" if rank == 0 else "middle"):
        wrapped(torch.full((1, 4), rank + 1.0), used).sum().backward()
        for layer in (module.left, module.right):
            layer.weight.grad *= rank + 1  # as a script may: no two ranks alike
    return [None if p.grad is None else p.grad.tolist() for p in module.parameters()]


def test_what_torch_does_with_earlier_gradients(ranks: Any) -> None:
    """Untouched where no rank uses a parameter; else this rank's earlier one is in the mean."""
    importlib.import_module("torch._dynamo")  # torch's class imports it

    def body(rank: int) -> tuple[list[Any], list[Any]]:
        torch.manual_seed(5)
        theirs = TorchDDP(Routed(), find_unused_parameters=True)
        wanted = stale(theirs, rank)
        torch.manual_seed(5)
        ours = wrap(Routed(), find_unused_parameters=True)
        found = stale(ours, rank)
        ours.close()
        return wanted, found

    for wanted, found in ranks.run(2, body):
        assert wanted[0] is None, "the last layer takes no part"
        for one, other in zip(wanted, found, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-6)


@dataclass
class Nested:
    """What a forward may return: tensors deep inside."""

    branches: dict[str, list[Tensor]]
    note: str = "two branches"


class Opaque:
    """Nobody can look into this."""

    def __init__(self, branches: dict[str, list[Tensor]]) -> None:
        self.branches = branches


class NestedBranches(Branches):
    def __init__(self, container: Any) -> None:
        super().__init__()
        self.container = container

    def forward(self, inputs: Tensor, used: str = "left right") -> Any:
        return self.container({name: [getattr(self, name)(inputs)] for name in used.split()})


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_nested_outputs(ranks: Any, num_ranks: int) -> None:
    """B14: found in any container, or decided at the end of backward; with one branch unused."""
    containers: list[Any] = [Nested, Opaque, dict, lambda branches: (branches["left"][0],)]

    def body(rank: int) -> list[list[Any]]:
        found = []
        for container in containers:
            module = NestedBranches(container)
            wrapped = wrap(module, find_unused_parameters=True, overlap=container is not dict)
            outputs = wrapped(torch.full((1, 4), rank + 1.0), "left")
            branches = outputs if isinstance(outputs, dict) else getattr(outputs, "branches", None)
            tensor = outputs[0] if branches is None else branches["left"][0]
            tensor.sum().backward()
            wrapped.close()
            found.append([None if p.grad is None else p.grad.tolist() for p in module.parameters()])
        return found

    weight = torch.full((4, 4), (num_ranks + 1) / 2).tolist()
    wanted = [[weight, [1.0] * 4, None, None]] * len(containers)
    assert ranks.run(num_ranks, body) == [wanted] * num_ranks


def test_a_gradient_that_forward_did_not_show_is_named(ranks: Any) -> None:
    """The weight comes into the loss beside the outputs: too late for its bucket."""

    def body(_rank: int) -> str:
        wrapped = wrap(Branches(), find_unused_parameters=True)
        loss = wrapped(torch.ones(2, 4), "left").sum() + wrapped.module.right.weight.sum()
        return message(loss.backward)

    text = the_one_text(ranks.run(2, body))
    assert "'right.weight' got a gradient although nothing that forward returned" in text


class Bypass(Branches):
    def forward(self, inputs: Tensor, used: str = "left right") -> Tensor:
        return super().forward(inputs, used) if used else inputs * 2


def test_a_rank_that_uses_no_parameter_at_all(ranks: Any) -> None:
    """It says so at the end of its backward; autograd.grad stays local."""

    def body(rank: int) -> tuple[str, list[Any]]:
        torch.manual_seed(2)
        module = Bypass()
        wrapped = wrap(module, find_unused_parameters=True)
        inputs = torch.ones(1, 4, requires_grad=True)
        loss = wrapped(inputs, "" if rank else "left right").sum()
        torch.autograd.grad(loss, inputs, retain_graph=True)
        text = message(loss.backward)
        return text, as_lists([p.grad for p in module.parameters() if p.grad is not None])

    first, second = ranks.run(2, body)
    assert first == second
    assert first[0] == "nothing was raised"
    assert first[1][3] == [0.5] * 4


def test_no_parameter_used_without_the_flag_is_named_at_once(ranks: Any) -> None:
    def body(rank: int) -> str:
        wrapped = wrap(Bypass(), timeout_s=50)
        inputs = torch.ones(1, 4, requires_grad=True)
        return message(lambda: wrapped(inputs, "" if rank else "left right").sum().backward())

    assert "rank 1: no gradient reached 'right.bias'" in the_one_text(ranks.run(2, body))


def test_the_lessons_deadlock_under_a_timeout(ranks: Any) -> None:
    def body(rank: int) -> tuple[str, int]:
        wrapped = wrap(Branches(), lesson_deadlock=True, timeout_s=3.0)
        wrapped(torch.ones(1, 4)).sum().backward()
        wrapped.communication()
        used = "left right" if rank else "right"
        stuck = message(lambda: wrapped(torch.ones(1, 4), used).sum().backward())
        return stuck, len(wrapped.communication().exposed)

    values = ranks.run(2, body)
    text = the_one_text([stuck for stuck, _ in values])
    assert text.startswith("ReductionFailed: rank 0: deadlock, as in the lesson: waited 1.5 s for ")
    assert "'left.weight'" in text and "find_unused_parameters=True" in text
    assert [num for _, num in values] == [2, 1], "rank 0 waited before the buckets too"


def test_buckets_of_unused_parameters_do_not_hold_up_the_others(ranks: Any) -> None:
    """They go as soon as those behind them do: forward's graph has told."""

    def body(_rank: int) -> tuple[list[int], bool]:
        wrapped = wrap(Branches(), find_unused_parameters=True)
        wrapped(torch.ones(1, 4), "left").sum().backward()
        step = wrapped.communication()
        return [b.index for b in step.buckets], step.buckets[0].ready_ns < step.gradients_ready_ns

    assert ranks.run(2, body) == [([0, 1, 2, 3], True)] * 2


def test_outputs_that_are_found_only_in_part(ranks: Any) -> None:
    """What is hidden may still get a gradient."""

    class Partly(Branches):
        def forward(self, inputs: Tensor, used: str = "") -> Any:  # noqa: ARG002
            return self.left(inputs), Opaque({"right": [self.right(inputs)]})

    def body(rank: int) -> list[Any]:
        wrapped = wrap(Partly(), find_unused_parameters=True)
        shown, hidden = wrapped(torch.full((1, 4), rank + 1.0))
        (shown + hidden.branches["right"][0]).sum().backward()
        return as_lists([p.grad for p in wrapped.parameters()])

    wanted = [torch.full((4, 4), 1.5).tolist(), [1.0] * 4] * 2
    assert ranks.run(2, body) == [wanted] * 2


def test_a_function_written_in_python_may_hide_parameters(ranks: Any) -> None:
    """As reentrant checkpointing does: nothing is taken for unused before the end."""
    importlib.import_module("torch._dynamo")

    class Hidden(Branches):
        def forward(self, inputs: Tensor, used: str = "") -> Tensor:  # noqa: ARG002
            hidden: Tensor = checkpoint(self.left, self.left(inputs), use_reentrant=True)
            return hidden + checkpoint(self.right, inputs, use_reentrant=True)

    class Once(Branches):
        def forward(self, inputs: Tensor, used: str = "") -> Tensor:  # noqa: ARG002
            hidden: Tensor = checkpoint(self.right, inputs, use_reentrant=True)
            return hidden

    def body(rank: int) -> tuple[str, list[Any]]:
        twice = wrap(Hidden(), find_unused_parameters=True)
        inputs = torch.full((1, 4), rank + 1.0, requires_grad=True)
        text = message(lambda: twice(inputs).sum().backward())
        once = wrap(Once(), find_unused_parameters=True)
        once(inputs).sum().backward()
        return text, [None if p.grad is None else p.grad.tolist() for p in once.parameters()]

    values = ranks.run(2, body)
    assert "'left." in the_one_text([text for text, _ in values])
    wanted = [None, None, torch.full((4, 4), 1.5).tolist(), [1.0] * 4]
    assert [found for _, found in values] == [wanted] * 2


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_native_and_steps_without_communication(ranks: Any, num_ranks: int) -> None:
    """`native` tells use as schedules do; without communication only this rank's use counts."""

    def body(rank: int) -> list[list[Any]]:
        found = []
        for alone in (False, True):
            module = Routed()
            wrapped = wrap(module, algorithm="native", find_unused_parameters=True)
            used = "left" if rank == 0 else "right"
            with wrapped.reduce_with(NoCollective()) if alone else nullcontext():
                wrapped(torch.full((1, 4), rank + 1.0), used).sum().backward()
            layers = (module.left, module.right, module.middle)
            found.append([each.bias.grad for each in layers])
            wrapped.close()
        return [[None if g is None else g.tolist() for g in step] for step in found]

    one = [1.0] * 4
    mean = [torch.tensor(share / num_ranks).repeat(4).tolist() for share in (1, num_ranks - 1)]
    wanted = [
        [[*mean, None], [one, None, None] if rank == 0 else [None, one, None]]
        for rank in range(num_ranks)
    ]
    assert ranks.run(num_ranks, body) == wanted
