"""Where the random numbers of one job on one rank stand: all that a model may draw from."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """Torch's and Python's random numbers, as they were when this was taken."""

    of_torch: Tensor
    of_python: tuple[Any, ...]
    of_gpu: Tensor | None = None

    @classmethod
    def take(cls) -> "RandomState":
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        of_gpu = torch.cuda.get_rng_state() if on_gpu else None
        return cls(torch.get_rng_state(), random.getstate(), of_gpu)

    def restore(self) -> None:
        torch.set_rng_state(self.of_torch)
        random.setstate(self.of_python)
        if self.of_gpu is not None:
            torch.cuda.set_rng_state(self.of_gpu)
