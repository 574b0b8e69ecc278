"""Floors under a model's own computing, spread over its layers by sleeping.

Gradients and loss stay real; only time is added, layer by layer, so that gradients become ready
one layer after the other as they would on a slower device. Owns no measuring (train does that).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves


def sleep_until(deadline_ns: int) -> None:
    """Returns at once when the deadline (CLOCK_MONOTONIC) has passed."""
    remaining_ns = deadline_ns - time.monotonic_ns()
    if remaining_ns > 0:
        time.sleep(remaining_ns / 1e9)


class LayerFloor:
    """A floor of `floor_s` under one pass through `num_layers` layers, an equal share for each.

    It sleeps *before* a layer computes, so that the layer ends when its share does: until the
    latest moment at which it and all that follow still end in time, if each takes as long as in
    the pass before. What is then missing is slept at the end.
    """

    def __init__(self, floor_s: float, num_layers: int) -> None:
        self._share_ns = round(floor_s * 1e9 / num_layers)
        self._took_ns = [0] * num_layers
        self._start_ns = 0
        self._computing: int | None = None
        self._released_ns = 0

    def start(self) -> None:
        self._start_ns = time.monotonic_ns()
        self._computing = None

    def layer(self, place: int) -> None:
        """The layer that comes `place`-th in this pass is about to compute."""
        self._note_what_the_last_took()
        computing_ns = accumulate(self._took_ns[place:])
        latest_ns = min(
            share_end * self._share_ns - took_ns
            for share_end, took_ns in enumerate(computing_ns, start=place + 1)
        )
        sleep_until(self._start_ns + latest_ns)
        self._computing = place
        self._released_ns = time.monotonic_ns()

    def end(self) -> None:
        self._note_what_the_last_took()
        self._computing = None
        sleep_until(self._start_ns + len(self._took_ns) * self._share_ns)

    def _note_what_the_last_took(self) -> None:
        if self._computing is not None:
            self._took_ns[self._computing] = time.monotonic_ns() - self._released_ns


class Pace:
    """Holds a model to its floors while entered; leaving removes every hook.

    Forward is followed by hooks on the layers, backward by hooks on the gradients of their outputs
    (a layer's backward begins when its output's gradient is known), so that gradients become ready
    layer by layer. Each pass of a micro-step has its own floor. Backward ends with that of the
    first layer, or of the whole model where no gradient leaves the first layer.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[nn.Module], forward_s: float, backward_s: float
    ) -> None:
        self._model = model
        self._layers = layers
        self._forward = LayerFloor(forward_s, len(layers))
        self._backward = LayerFloor(backward_s, len(layers))
        self._in_backward = False
        self._ends_with_model = False
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        last = len(self._layers) - 1
        self._handles = [
            self._model.register_forward_pre_hook(self._forward_starts),
            self._model.register_forward_hook(self._model_returns),
            self._layers[0].register_forward_pre_hook(self._first_layer_begins),
            self._layers[last].register_forward_hook(lambda *_: self._forward.end()),
        ]
        for place, layer in enumerate(self._layers):
            begins = partial(self._forward_reaches, place)
            returns = partial(self._layer_returns, last - place)
            self._handles.append(layer.register_forward_pre_hook(begins))
            self._handles.append(layer.register_forward_hook(returns))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _forward_starts(self, _model: nn.Module, _inputs: Any) -> None:
        self._in_backward = False
        self._forward.start()

    def _forward_reaches(self, place: int, _layer: nn.Module, _inputs: Any) -> None:
        self._forward.layer(place)

    def _first_layer_begins(self, _layer: nn.Module, inputs: Any) -> None:
        self._ends_with_model = not on_gradient(inputs, self._backward.end)

    def _layer_returns(self, place: int, _layer: nn.Module, _inputs: Any, output: Any) -> None:
        on_gradient(output, partial(self._backward_reaches, place))

    def _model_returns(self, _model: nn.Module, _inputs: Any, output: Any) -> None:
        on_gradient(output, self._backward_starts)

    def _backward_starts(self) -> None:
        if not self._in_backward:  # the last layer's output may be the model's
            self._in_backward = True
            self._backward.start()
            if self._ends_with_model:
                Variable._execution_engine.queue_callback(self._backward.end)

    def _backward_reaches(self, place: int) -> None:
        self._backward_starts()
        self._backward.layer(place)


def on_gradient(values: Any, call: Callable[[], None]) -> bool:
    """Calls when a backward has its first gradient of a tensor in `values`, however nested.

    Never where nothing is recorded: then it returns False.
    """
    tensors = [each for each in tree_leaves(values) if isinstance(each, Tensor)]
    recorded = [tensor for tensor in tensors if tensor.requires_grad]
    called_in: set[int] = set()

    def hook(_gradient: Tensor) -> None:
        backward = torch._C._current_graph_task_id()
        if backward not in called_in:
            called_in.add(backward)
            call()

    for tensor in recorded:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    return bool(recorded)
