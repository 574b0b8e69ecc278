"""What a job needs of the wrapper around its model, whoever wrote it.

Owns the protocol. ddp.DistributedDataParallel follows it as it is; `stock` makes torch's own class
follow it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

from torch import nn

from ddp.calibrate import Calibration
from ddp.plan import ReductionPlan
from ddp.timing import BucketTiming, Traffic


class Communication(Protocol):
    """What one rank knows of a step's communication, as ddp.timing.StepCommunication has it.

    `buckets` are None where a library reduces gradients that does not tell how.
    """

    @property
    def buckets(self) -> Sequence[BucketTiming] | None: ...

    @property
    def exposed(self) -> list[tuple[int, int]]: ...

    @property
    def traffic(self) -> Traffic: ...


class Wrapper(Protocol):
    """A model whose gradients are reduced. Methods mean what they mean in ddp's class."""

    module: nn.Module

    @property
    def plan(self) -> ReductionPlan | None:
        """None where it is not known yet, or never will be."""

    @property
    def shares_memory_with(self) -> Sequence[int]:
        """The ranks of this node that read this one's buckets, and it theirs."""

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def no_sync(self) -> AbstractContextManager[None]: ...

    def without_network(self) -> AbstractContextManager[None]:
        """Inside, steps send nothing at all; every rank must do the same."""

    def communication(self) -> Communication: ...

    def calibrate(self) -> Calibration | None:
        """None where what is measured is not what reduces."""

    def verify_parameters(self) -> str: ...

    def abort(self, reason: str) -> NoReturn: ...

    def close(self) -> None: ...
