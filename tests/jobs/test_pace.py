"""Pace is tested on a clock that only sleeping and the layers themselves move."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from jobs import pace
from jobs.pace import Pace, on_gradient

MS = 1_000_000
FLOOR_MS = 100


class Clock:
    """Stands in for the `time` module."""

    def __init__(self) -> None:
        self.now_ns = 5_000 * MS
        self.slept_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.slept_ns += round(seconds * 1e9)


class Costly(torch.autograd.Function):
    """x, at a price in each direction."""

    @staticmethod
    def forward(context, x, clock, forward_ms, backward_ms):  # type: ignore[no-untyped-def]
        context.price = (clock, backward_ms)
        clock.now_ns += forward_ms * MS
        return x.clone()

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        clock, backward_ms = context.price
        clock.now_ns += backward_ms * MS
        return gradient, None, None, None


class Layer(nn.Module):
    """Multiplies by a parameter and takes time."""

    def __init__(self, clock: Clock, forward_ms: int, backward_ms: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.price = (clock, forward_ms, backward_ms)

    def forward(self, x: Tensor) -> Tensor:
        return Costly.apply(x * self.scale, *self.price)


class Model(nn.Module):
    def __init__(self, *layers: Layer) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.ones(3))
        self.layers = nn.ModuleList(layers)

    def forward(self) -> Tensor:
        x = self.embedding * 1.0
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def paced(model: Model) -> Pace:
    return Pace(model, list(model.layers), FLOOR_MS / 1e3, 2 * FLOOR_MS / 1e3)


def run(model: Model, clock: Clock) -> tuple[int, int, list[int]]:
    """Milliseconds of forward and backward, and when each layer's gradient was ready in it."""
    ready = []
    handles = [
        layer.scale.register_post_accumulate_grad_hook(lambda _: ready.append(clock.now_ns))
        for layer in model.layers
    ]
    start = clock.now_ns
    output = model().sum()
    between = clock.now_ns
    output.backward()
    for handle in handles:
        handle.remove()
    return (
        (between - start) // MS,
        (clock.now_ns - between) // MS,
        [(at - between) // MS for at in ready],
    )


def model_of(clock: Clock, forward_ms: int, backward_ms: int, num_layers: int = 4) -> Model:
    return Model(*(Layer(clock, forward_ms, backward_ms) for _ in range(num_layers)))


@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_a_fast_model_takes_exactly_the_floors(clock: Clock, num_layers: int) -> None:
    model = model_of(clock, 3, 5, num_layers)
    with paced(model):
        run(model, clock)
        forward_ms, backward_ms, _ = run(model, clock)
    assert (forward_ms, backward_ms) == (FLOOR_MS, 2 * FLOOR_MS)


def test_the_first_pass_is_never_below_the_floors(clock: Clock) -> None:
    model = model_of(clock, 3, 5)
    with paced(model):
        forward_ms, backward_ms, _ = run(model, clock)
    assert forward_ms >= FLOOR_MS
    assert backward_ms >= 2 * FLOOR_MS


def test_gradients_become_ready_layer_by_layer_each_when_its_share_ends(clock: Clock) -> None:
    model = model_of(clock, 3, 5)
    with paced(model):
        run(model, clock)
        _, _, ready_ms = run(model, clock)
    assert ready_ms == [50, 100, 150, 200]


def test_a_slow_model_is_not_slowed_down(clock: Clock) -> None:
    model = model_of(clock, 40, 60)
    with paced(model):
        run(model, clock)
        slept_ns = clock.slept_ns
        forward_ms, backward_ms, _ = run(model, clock)
    assert (forward_ms, backward_ms) == (160, 240)
    assert clock.slept_ns == slept_ns


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_a_slow_layer_takes_its_time_from_the_sleep_of_the_others(clock: Clock, slow: int) -> None:
    prices = [(40, 70) if place == slow else (1, 1) for place in range(4)]
    model = Model(*(Layer(clock, *price) for price in prices))
    with paced(model):
        run(model, clock)
        forward_ms, backward_ms, _ = run(model, clock)
    assert forward_ms == FLOOR_MS
    assert backward_ms == 2 * FLOOR_MS


def test_values_are_untouched(clock: Clock) -> None:
    model = model_of(clock, 1, 1)
    model().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with paced(model):
        model().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_without_gradients_only_forward_is_paced(clock: Clock) -> None:
    model = model_of(clock, 3, 5)
    with paced(model), torch.no_grad():
        model()
    assert clock.slept_ns == FLOOR_MS * MS - 9 * MS


def test_leaving_removes_every_hook(clock: Clock) -> None:
    model = model_of(clock, 3, 5)
    with paced(model):
        pass
    assert run(model, clock)[:2] == (12, 20)
    assert clock.slept_ns == 0


class Whole(nn.Module):
    """One that takes whole numbers and returns several things, in layers that nobody knows of."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.layer = Layer(clock, 3, 5)

    def forward(self) -> dict[str, list[Tensor]]:
        x = self.layer(torch.ones(3))
        return {"outputs": [x, x * 2, torch.ones(1)]}


def passes(model: Whole, clock: Clock) -> tuple[int, int]:
    start = clock.now_ns
    outputs = model()["outputs"]
    between = clock.now_ns
    sum(output.sum() for output in outputs).backward()
    return (between - start) // MS, (clock.now_ns - between) // MS


def test_a_model_without_layers_is_paced_as_a_whole(clock: Clock) -> None:
    model = Whole(clock)
    with Pace(model, [model], FLOOR_MS / 1e3, 2 * FLOOR_MS / 1e3):
        first = passes(model, clock)
        assert passes(model, clock) == passes(model, clock) == (FLOOR_MS, 2 * FLOOR_MS)
    assert first[0] >= FLOOR_MS and first[1] >= 2 * FLOOR_MS
    assert passes(model, clock) == (3, 5)


def test_a_layer_whose_input_has_no_gradient_still_ends_in_time(clock: Clock) -> None:
    class Plain(Model):
        def forward(self) -> Tensor:
            x = torch.ones(3)
            for layer in self.layers:
                x = layer(x)
            return x

    model = Plain(Layer(clock, 3, 5), Layer(clock, 3, 5))
    with paced(model):
        run(model, clock)
        forward_ms, backward_ms, ready_ms = run(model, clock)
    assert (forward_ms, backward_ms) == (FLOOR_MS, 2 * FLOOR_MS)
    assert ready_ms == [100, 200]


def test_layers_may_return_several_things(clock: Clock) -> None:
    class Pair(Layer):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), x

    class Pairs(Model):
        def forward(self) -> Tensor:
            x = self.embedding * 1.0
            for layer in self.layers:
                x, _ = layer(x)
            return x

    model = Pairs(Pair(clock, 3, 5), Pair(clock, 3, 5))
    with paced(model):
        run(model, clock)
        assert run(model, clock) == (FLOOR_MS, 2 * FLOOR_MS, [100, 200])


def test_a_gradient_is_told_once_in_each_backward() -> None:
    told: list[int] = []
    x = torch.ones(2, requires_grad=True)
    outputs = {"a": x * 2, "b": (x * 3, "word", torch.ones(1))}
    assert on_gradient(outputs, lambda: told.append(1))
    total = outputs["a"].sum() + outputs["b"][0].sum()
    total.backward(retain_graph=True)
    assert told == [1]
    total.backward()
    assert told == [1, 1]
    assert not on_gradient([torch.ones(1), None], lambda: told.append(1))
