"""resnet: a small residual network with batch norms, whose buffers every rank must share.

A window of text is taken for a picture of one channel, and the byte after it is predicted.
Shapes: batch = samples of a micro-step, side = rows and columns, width = channels.
He et al., "Deep residual learning for image recognition", 2015.
"""

from torch import Tensor, nn
from torch.nn import functional

from jobs.models.model import NUM_BYTES, Model
from jobs.modelspec import ResnetSpec


def _convolution(channels: int, width: int) -> nn.Sequential:
    """A 3x3 convolution that keeps the picture's size, and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(width)
    )


class Block(nn.Module):
    """Two convolutions that add to what they were given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _convolution(width, width)
        self.second = _convolution(width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, width, side, side), as it stays
        result: Tensor = (x + self.second(self.first(x).relu())).relu()
        return result


class Resnet(nn.Module):
    """(batch, side * side) bytes -> (batch, 256) logits of the byte that follows the last."""

    def __init__(self, layers: int, width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.stem = _convolution(1, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, NUM_BYTES)

    def forward(self, x: Tensor) -> Tensor:
        picture = x.view(-1, 1, self.side, self.side) / NUM_BYTES  # (batch, 1, side, side)
        hidden = self.stem(picture).relu()  # (batch, width, side, side)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))  # (batch, 256)
        return logits


def last_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, of (batch, 256) against the last of (batch, context)."""
    return functional.cross_entropy(logits, targets[:, -1])


def build_resnet(spec: ResnetSpec) -> Model:
    module = Resnet(spec.layers, spec.width, spec.side)
    return Model(module, tuple(module.blocks), last_byte_loss)
