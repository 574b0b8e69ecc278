"""A model of one's own: `model: {import: "my.py:build"}` trains what `build` of my.py returns.

On every rank the file runs once, then `build(context, **settings)` is called: `context` is
model.context, the bytes of a window; `settings` are the keys below model.settings, as arguments by
name. Torch's and Python's random numbers are those of train.seed by then, so that all ranks start
alike; later, in training, torch's are each rank's own. What it returns is

- a torch module that predicts the next byte of text. It is called with (batch, context) bytes,
  int64, and returns (batch, context, 256) logits; or
- `jobs.models.Model(module, layers=[...], loss=...)`. `loss(outputs, targets)` is what training
  brings down, whatever the module returns; `layers` are those that pace spreads its floors over.

The least there can be:

    from torch import nn

    def build(context, width=64):
        return nn.Sequential(nn.Embedding(256, width), nn.ReLU(), nn.Linear(width, 256))

docs/own_model.py is a longer example. The file may import its neighbours; what is recorded is the
SHA-256 of the file itself. This module owns running it, and checking what comes back.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ddp.source import find, run
from jobs.errors import ModelError
from jobs.modelfile import KEY, Source, blame, in_words, read_source, told_as_ours
from jobs.models.model import NUM_BYTES, Model, next_byte_loss
from jobs.modelspec import OwnSpec


def build_own(spec: OwnSpec) -> Model:
    """What the function returns. Raises ModelError, naming the line of the file, where it fails."""
    source = read_source(spec)
    with _blamed():
        module = run(source.read, source.module_name, KEY)
    with told_as_ours():
        function = find(module, spec.function, source.file.path, KEY)
    arguments = _arguments(function, source, spec)
    with _blamed():
        returned = function(*arguments.args, **arguments.kwargs)
    model = Model(returned) if isinstance(returned, nn.Module) else returned
    where = _where(function, source)
    _check(model, where)
    _explain_forward(model.module, where)
    return replace(model, loss=_checked_loss(model, where), file=source.file)


@contextmanager
def _blamed() -> Iterator[None]:
    """Whatever the user's code raises becomes one message that names its line."""
    try:
        yield
    except (Exception, SystemExit) as exc:
        raise blame(exc) or exc from exc


def _arguments(
    function: Callable[..., Any], source: Source, spec: OwnSpec
) -> inspect.BoundArguments:
    signature = inspect.signature(function)
    try:
        return signature.bind(spec.context, **spec.settings)
    except TypeError as exc:
        given = ", ".join(["context", *spec.settings])
        raise ModelError(
            f"{_where(function, source)}{signature} is called with ({given}): {exc}",
            rule="it takes the bytes of a window, then model.settings by name",
            fix=f"def {source.file.function}({given}): ..., or change model.settings",
        ) from exc


def _where(function: Callable[..., Any], source: Source) -> str:
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
    place = f"{source.file.path}:{line}" if line else source.file.path
    return f"{KEY}: {place}: {source.file.function}"


def _check(model: object, where: str) -> None:
    returns = "it returns a torch module, or jobs.models.Model(module, layers=[...], loss=...)"
    if not isinstance(model, Model) or not isinstance(model.module, nn.Module):
        wrong = model.module if isinstance(model, Model) else model
        raise ModelError(
            f"{where} returned {type(wrong).__name__} for the module",
            rule=returns,
            fix="return the module that is to be trained",
        )
    inside = set(model.module.modules())
    if not all(layer in inside for layer in model.layers):
        raise ModelError(
            f"{where} returned layers that are not part of the module",
            rule="layers are the parts of the module whose computing can be paced",
            fix="list modules that are inside, or leave layers out",
        )
    if not callable(model.loss):
        raise ModelError(f"{where} returned {type(model.loss).__name__} for the loss", rule=returns)


def _explain_forward(module: nn.Module, where: str) -> None:
    """What goes wrong in forward is told as the module's, also where a layer of torch raises it."""
    forward = module.forward

    def explained(*inputs: Any, **named: Any) -> Any:
        try:
            return forward(*inputs, **named)
        except Exception as exc:
            shape = tuple(inputs[0].shape) if inputs and isinstance(inputs[0], Tensor) else ()
            what = f"{where}: its module, given {shape} bytes"
            raise blame(exc) or in_words(exc, what) from exc

    module.forward = explained


def _checked_loss(model: Model, where: str) -> Callable[[Any, Tensor], Tensor]:
    """The model's loss, whose result is one that can be trained with."""

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        if model.loss is next_byte_loss:
            _require_logits(outputs, targets, where)
        value = model.loss(outputs, targets)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ModelError(
                f"{where}: its loss gave {_shown(value)}",
                rule="loss(outputs, targets) gives one number, a tensor that gradients reach",
                fix="end it with .mean(), and leave out .item() and .detach()",
            )
        return value.reshape(())

    return loss


def _require_logits(outputs: Any, targets: Tensor, where: str) -> None:
    expected = (*targets.shape, NUM_BYTES)
    if not isinstance(outputs, Tensor) or tuple(outputs.shape) != expected:
        raise ModelError(
            f"{where}: its module returned {_shown(outputs)} for {tuple(targets.shape)} bytes",
            rule=f"without a loss of its own it returns logits of the next byte, {expected}",
            fix="return Model(module, loss=...), a loss that fits what the module returns",
        )


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    reached = "" if value.requires_grad else " that no gradient reaches"
    return f"a tensor of shape {tuple(value.shape)}{reached}"
