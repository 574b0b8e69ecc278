"""Tensors in what a forward returned, and the parameters they lead to."""

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.outputs import find_tensors, reachable_parameters

ONE, TWO = torch.ones(1), torch.zeros(2)
Pair = namedtuple("Pair", "first second")


@dataclass
class Deep:
    inner: Any
    count: int = 3


class Model(OrderedDict[str, Any]):
    """As libraries of models return."""


@pytest.mark.parametrize(
    "outputs",
    [
        (ONE, TWO),
        {"a": ONE, "b": [TWO, None, "text", 3.5]},
        Pair(ONE, {"x": (TWO,)}),
        Deep(Deep([ONE, deque([TWO])])),
        Model(logits=ONE, hidden=(TWO, torch.Size([2]), torch.float32)),
        Deep({ONE, TWO}),
    ],
)
def test_tensors_are_found_however_deep_they_lie(outputs: Any) -> None:
    tensors, complete = find_tensors(outputs)
    assert {id(tensor) for tensor in tensors} == {id(ONE), id(TWO)}
    assert len(tensors) == 2
    assert complete


@pytest.mark.parametrize(
    "outputs", [SimpleNamespace(a=ONE), [TWO, SimpleNamespace()], Deep(object())]
)
def test_what_nobody_can_look_into_is_told(outputs: Any) -> None:
    assert not find_tensors(outputs)[1]


def test_a_container_that_holds_itself_ends() -> None:
    outputs: list[Any] = [ONE]
    outputs.append(outputs)
    tensors, complete = find_tensors(outputs)
    assert [id(tensor) for tensor in tensors] == [id(ONE)]
    assert complete


def test_parameters_that_an_output_leads_to() -> None:
    first, second, third = (nn.Linear(2, 2) for _ in range(3))
    hidden = first(torch.ones(1, 2))
    outputs = second(hidden)
    third(hidden)
    wanted = {id(parameter) for layer in (first, second) for parameter in layer.parameters()}
    assert reachable_parameters([outputs]) == wanted
    assert reachable_parameters([third.weight, torch.ones(1)]) == {id(third.weight)}
    assert reachable_parameters([hidden.detach()]) == set()


def test_a_function_in_python_hides_what_it_leads_to() -> None:
    class Through(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, inputs: Tensor) -> Tensor:
            return inputs.clone()

        @staticmethod
        def backward(_context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient

    assert reachable_parameters([Through.apply(nn.Linear(2, 2)(torch.ones(1, 2)))]) is None
