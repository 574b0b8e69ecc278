"""Failing together: the first cause, as one text on every rank, and nobody hangs."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.errors import ReductionFailed
from tests.ddp.samples import Branches, message, the_one_text, train, wrap


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "parameter_server", "native"])
@pytest.mark.parametrize("overlap", [True, False])
def test_an_unused_parameter_is_named_on_every_rank(
    ranks: Any, algorithm: str, overlap: bool
) -> None:
    def body(rank: int) -> tuple[str, str]:
        wrapped = wrap(Branches(), algorithm=algorithm, overlap=overlap)
        train(wrapped)
        first = message(lambda: train(wrapped, "left right" if rank else "right"))
        again = message(lambda: train(wrapped))
        wrapped.close()
        return first, again

    values = ranks.run(3, body)
    text = the_one_text([first for first, _ in values])
    assert text.startswith(
        "ReductionFailed: rank 0: no gradient reached 'left.bias', 'left.weight'"
    )
    again = the_one_text([again for _, again in values])
    assert "has stopped and cannot be used again" in again
    assert "'left.weight'" in again


def test_a_parameter_unused_everywhere_is_named(ranks: Any) -> None:
    def body(_rank: int) -> str:
        wrapped = wrap(Branches())
        return message(lambda: train(wrapped, "left"))

    assert "'right.weight'" in the_one_text(ranks.run(2, body))


class Sparse(nn.Embedding):
    """B21: its layer does not say that its gradients are sparse."""

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.embedding(inputs, self.weight, sparse=True)


BAD_GRADIENTS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor], str]] = {
    "sparse": (
        lambda: Sparse(5, 2),
        lambda wrapped: wrapped(torch.tensor([1, 2])).sum(),
        "sparse=False",
    ),
    "graph": (
        lambda: nn.Linear(4, 4),
        lambda wrapped: wrapped(torch.ones(2, 4)).square().sum(),
        "create_graph=False",
    ),
}


@pytest.mark.parametrize("kind", BAD_GRADIENTS)
@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_gradient_that_cannot_be_reduced_is_named(ranks: Any, kind: str) -> None:
    build, loss, remedy = BAD_GRADIENTS[kind]

    def body(_rank: int) -> str:
        wrapped = wrap(build())
        return message(lambda: loss(wrapped).backward(create_graph=kind == "graph"))

    text = the_one_text(ranks.run(2, body))
    assert "'weight'" in text or "'bias'" in text
    assert remedy in text


def test_a_layer_used_twice_under_reentrant_checkpointing_is_named(ranks: Any) -> None:
    importlib.import_module("sympy")  # the inner backward does: once here, not in each rank

    class Inner(torch.autograd.Function):
        """What reentrant checkpointing does: a backward inside a backward."""

        @staticmethod
        def forward(context: Any, inputs: Tensor, layer: nn.Module) -> Tensor:
            context.layer = layer
            context.save_for_backward(inputs)
            return layer(inputs)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Any:  # type: ignore[override]
            inputs = context.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                torch.autograd.backward(context.layer(inputs), gradient)
            return inputs.grad, None

    class Twice(Branches):
        def forward(self, inputs: Tensor, used: str = "") -> Tensor:  # noqa: ARG002
            hidden = Inner.apply(self.left(inputs), self.right)
            return Inner.apply(hidden, self.right)

    text = the_one_text(ranks.run(2, lambda _rank: message(lambda: train(wrap(Twice())))))
    assert "'right." in text
    assert "use_reentrant=False" in text


def test_different_models_are_refused_alike(ranks: Any) -> None:
    cases: list[tuple[Callable[[int], nn.Module], str]] = [
        (lambda rank: nn.Linear(4, 4 + (rank == 1)), "rank 1 has parameter 'weight' (5, 4)"),
        (lambda rank: nn.Linear(4, 4, bias=rank != 2), "rank 2 has nothing"),
        (lambda rank: nn.Linear(4, 4).double() if rank else nn.Linear(4, 4), "float64"),
        (lambda rank: nn.BatchNorm1d(4, track_running_stats=rank == 0), "buffer 'running_mean'"),
        (lambda _rank: nn.Linear(4, 4).requires_grad_(False), "no parameter of the module"),
        (lambda _rank: nn.Embedding(5, 2, sparse=True), "use sparse=False"),
    ]

    def body(rank: int) -> list[str]:
        return [message(lambda build=build: wrap(build(rank))) for build, _ in cases]

    for (_, expected), *texts in zip(cases, *ranks.run(3, body), strict=True):
        text = the_one_text(texts)
        assert text.startswith("UsageError")
        assert expected in text


def test_different_or_wrong_arguments_are_refused_alike(ranks: Any) -> None:
    cases: list[tuple[Callable[[int], dict[str, Any]], str]] = [
        (lambda rank: {"bucket_cap_mb": 1.0 + rank}, "rank 1 asks for bucket_cap_mb=2.0"),
        (lambda rank: {"algorithm": "rign" if rank else "ring"}, "did you mean 'ring'"),
        (lambda _rank: {"segments": 0}, "segments=0"),
        (lambda _rank: {"timeout_s": 0}, "timeout_s=0"),
    ]

    def body(rank: int) -> list[str]:
        return [
            message(lambda choose=choose: wrap(nn.Linear(2, 2), **choose(rank)))
            for choose, _ in cases
        ]

    for (_, expected), *texts in zip(cases, *ranks.run(2, body), strict=True):
        assert expected in the_one_text(texts)


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_parameters_that_drift_stop_all_ranks(ranks: Any, algorithm: str) -> None:
    def body(rank: int) -> str:
        wrapped = wrap(Branches(), algorithm=algorithm)
        train(wrapped)
        if rank == 1:
            with torch.no_grad():
                wrapped.module.left.bias[2] += 1e-7
        return message(lambda: train(wrapped))

    text = the_one_text(ranks.run(2, body))
    assert "left.bias" in text
    assert "not the same on all ranks" in text


def test_abort_gives_every_rank_the_reason(ranks: Any) -> None:
    def body(rank: int) -> str:
        wrapped = wrap(Branches())
        train(wrapped)
        if rank == 2:
            return message(lambda: wrapped.abort("the data ended in epoch 3"))
        return message(lambda: train(wrapped))

    text = the_one_text(ranks.run(3, body))
    assert text == "ReductionFailed: rank 2: the data ended in epoch 3"


def test_a_backward_that_was_interrupted_stops_all_ranks(ranks: Any) -> None:
    """The caller swallowed the exception: peers must not wait inside a bucket for ever."""

    def body(rank: int) -> str:
        wrapped = wrap(Branches())
        hidden: list[Tensor] = []
        wrapped.module.left.register_forward_hook(lambda _m, _i, output: hidden.append(output))
        loss = wrapped(torch.ones(2, 4)).sum()
        if rank == 1:

            def interrupt(_gradient: Tensor) -> None:
                raise KeyError("out of memory, say")

            hidden[0].register_hook(interrupt)
            with pytest.raises(KeyError):
                loss.backward()
            return message(lambda: train(wrapped))
        return message(loss.backward)

    text = the_one_text(ranks.run(3, body))
    assert "rank 1: the backward before this forward was interrupted" in text


def test_reduction_failed_is_raised_before_the_optimizer_can_step(ranks: Any) -> None:
    def body(rank: int) -> bool:
        module = Branches()
        wrapped = wrap(module)
        before = wrapped.verify_parameters()
        with pytest.raises(ReductionFailed), torch.no_grad():
            with torch.enable_grad():
                train(wrapped, "left right" if rank else "right")
            for parameter in module.parameters():
                parameter += 1
        return wrapped.verify_parameters() == before

    assert ranks.run(2, body) == [True, True]
