"""Jobs that share a process: each draws the numbers that it would draw alone."""

import random
from types import SimpleNamespace
from typing import Any

import torch

from ddp.calibrate import Calibration
from jobs.events import Events
from jobs.rankrun import RankRun


class Drawing:
    """Stands in for a trainer whose model draws numbers from torch and from Python."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def step(self, number: int) -> Any:
        self.drawn += [torch.rand(1).item(), random.random()]
        return SimpleNamespace(record=SimpleNamespace(loss=0.0, step_s=0.0, step=number))


def ready(seed: int) -> RankRun:
    torch.manual_seed(seed)
    random.seed(seed)
    told = SimpleNamespace(job=SimpleNamespace(train=SimpleNamespace(steps=6)))
    writer = SimpleNamespace(step=lambda _: None)
    nothing = Calibration(None, None, None)
    return RankRun(told, Events(None), writer, Drawing(), nothing)  # type: ignore[arg-type]


def test_jobs_in_turn_draw_what_each_would_alone() -> None:
    alone = []
    for seed in (3, 4):
        run = ready(seed)
        run.train(range(6))
        alone.append(run.trainer.drawn)
    first, second = ready(3), ready(4)
    for turn in (range(2), range(2, 5), range(5, 6)):
        first.train(turn)
        second.train(turn)
    assert [first.trainer.drawn, second.trainer.drawn] == alone
    assert len({*alone[0], *alone[1]}) == 24
