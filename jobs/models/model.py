"""Model: what a job trains, in a shape that the worker uses without knowing the kind.

Owns the loss that models of text share. Shapes: batch = samples of a micro-step, context = bytes of
a window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from jobs.modelfile import ModelFile

NUM_BYTES = 256


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per byte, of (batch, context, 256) against (batch, context)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Model:
    """A module to train on windows of bytes, and what goes with it.

    `module` is called with (batch, context) bytes as int64. `loss` is called with what it returned
    and with targets, (batch, context) bytes, each the one that follows; it returns one number.
    `layers` are those whose computing can be paced, in forward order; none: the module as a whole.
    """

    module: nn.Module
    layers: Sequence[nn.Module] = ()
    loss: Callable[[Any, Tensor], Tensor] = next_byte_loss
    file: ModelFile | None = None
    """Filled in where the model is one's own."""

    @property
    def paced_layers(self) -> Sequence[nn.Module]:
        return tuple(self.layers) or (self.module,)
