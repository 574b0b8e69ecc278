"""An algorithm of one's own, by import path: `path/to/my.py:build` or `my_pkg.module:build`.

`build(fabric)` returns a Schedule for that Fabric. A function that has arguments of these names,
`build(fabric, ring_order, ring_seed)`, is given them too; for one that has not, a ring order or a
seed is refused. What the path names may also be an Algorithm, which says more of itself. A fabric
that it does not serve is refused with ddp.UsageError.

Owns making an Algorithm of what was found, whose schedules cannot surprise: whatever the user's
code raises or returns is told as one ScheduleError that names its line.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ddp.algorithms.algorithm import Algorithm
from ddp.errors import DdpError, OwnCodeError, ScheduleError, UsageError
from ddp.fabric import Fabric
from ddp.schedule import Schedule, Stage, Transfer
from ddp.source import Loaded, blame, in_words, load

KEY = "algorithm"
MAX_SEGMENTS = 4
"""Of a function, which does not say: as many as a ring takes."""
RING_ARGUMENTS = ("ring_order", "ring_seed")


def own_algorithm(text: str) -> Algorithm:
    """The algorithm at that place; its name is the place, for every process, pinned to the file.

    Raises OwnCodeError.
    """
    loaded = load(text, KEY, Algorithm)
    found = loaded.value
    where = f"{KEY}: {loaded.path}: {loaded.where.function}"
    if not isinstance(found, Algorithm):
        build = _Build(found, _takes_ring(found), loaded.where.short, where)
        summary = _first_sentence(found) or "An algorithm of your own."
        return Algorithm(str(loaded.where), summary, "exact_integers", build, MAX_SEGMENTS)
    if found.build is None or found.proof not in ("exact_integers", "tolerance"):
        raise OwnCodeError(
            f"{where} has proof {found.proof!r}" + ("" if found.build else ", and no build"),
            rule="an algorithm of your own has a schedule, which is proven by exact sums",
            fix='write Algorithm(..., proof="exact_integers", build=...)',
        )
    build = _Build(found.build, True, loaded.where.short, where)
    return replace(found, name=str(loaded.where), build=build)


def file_of(text: str) -> Loaded:
    """Where it was found, for records."""
    return load(text, KEY, Algorithm)


@dataclass(frozen=True)
class _Build:
    """Makes schedules as the user's code does, checked."""

    call: Callable[..., object]
    takes_ring: bool
    title: str
    where: str

    def __call__(self, fabric: Fabric, ring_order: str, ring_seed: int) -> Schedule:
        ring = (ring_order, ring_seed)
        if not self.takes_ring and ring != ("contiguous", 0):
            raise UsageError(
                f"{self.title} with ring order {ring_order!r} and seed {ring_seed}: it has no "
                f"arguments {' and '.join(RING_ARGUMENTS)}; leave the order 'contiguous' and the "
                "seed 0"
            )
        arguments = dict(zip(RING_ARGUMENTS, ring, strict=True)) if self.takes_ring else {}
        try:
            returned = self.call(fabric, **arguments)
        except DdpError:
            raise  # it refuses, in words of its own
        except (Exception, SystemExit) as exc:
            raise self._told(exc) from exc
        if not isinstance(returned, Schedule):
            raise ScheduleError(
                f"{self.where} returned {type(returned).__name__}: it returns a ddp.Schedule"
            )
        if returned.num_ranks != fabric.num_ranks:
            raise ScheduleError(
                f"{self.where} returned a schedule of {returned.num_ranks} ranks for a fabric of "
                f"{fabric.num_ranks}"
            )
        return replace(returned, name=self.title, stages=lambda: self._drawn(returned.stages))

    def _drawn(self, stages: Callable[[], Iterable[Any]]) -> Iterator[Stage]:
        try:
            for index, stage in enumerate(stages()):
                yield self._checked(index, tuple(stage))
        except DdpError:
            raise
        except (Exception, SystemExit) as exc:
            raise self._told(exc) from exc

    def _checked(self, index: int, stage: tuple[Any, ...]) -> Stage:
        for it in stage:
            numbers = isinstance(it, Transfer) and (it.src, it.dst, it.chunk)
            if not numbers or any(type(number) is not int for number in numbers):
                raise ScheduleError(
                    f"{self.title}: stage {index} holds {it!r:.80}, where Transfer(src, dst, "
                    "chunk, reduce) belongs, of whole numbers"
                )
        return stage

    def _told(self, error: BaseException) -> ScheduleError:
        return ScheduleError(str(blame(error) or in_words(error, self.where)))


def _takes_ring(function: Callable[..., object]) -> bool:
    try:
        return set(RING_ARGUMENTS) <= set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # it has no signature: then the call tells
        return False


def _first_sentence(function: object) -> str:
    text = inspect.getdoc(function) or ""
    return " ".join(text.partition("\n\n")[0].split())[:200]
