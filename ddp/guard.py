"""The step guard: a look at an optimizer's gradients before each of its steps.

Owns torch's hook on all optimizers, for as long as its wrapper lives. What is wrong with a step is
for the reducer to say.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

Check = Callable[[list[Tensor]], None]


class StepGuard:
    """Calls `check`, a method, with the tensors that an optimizer is about to change.

    Optimizers that are not torch.optim.Optimizer escape it. The method's object may go away.
    """

    def __init__(self, check: Check) -> None:
        self._check = weakref.WeakMethod(check)
        self._handle: RemovableHandle = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        self._handle.remove()

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        check = self._check()
        if check is None:
            self.close()
            return
        check([tensor for group in optimizer.param_groups for tensor in group["params"]])
