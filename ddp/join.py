"""Uneven inputs: ranks that run out of data end together, or fail at once.

Owns a word that ranks exchange before each forward that synchronises, while `join` is on: whether
each has one more batch. Does not touch gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp.between import between_steps
from ddp.errors import DdpError, ReductionFailed
from ddp.executor import AllReduces
from ddp.membership import Membership
from ddp.reducer import Reducer
from ddp.transport.p2p import translate


class Roll:
    """Who still has data. One is open from the start of `join` to its end.

    `throws`: all ranks raise where some have no more, else they leave the loop together.
    """

    def __init__(
        self, membership: Membership, group: AllReduces, reducer: Reducer, *, throws: bool
    ) -> None:
        self._rank, self._num_ranks = membership.rank, membership.size
        self._timeout = timedelta(seconds=membership.timeout_s)
        self._group = group
        self._reducer = reducer
        self._throws = throws
        self._num_forwards = 0

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Around the training loop. An exception inside stops all ranks."""
        try:
            with suppress(_DataEnded):
                yield
                self.call(more=False)
            self._reducer.forget_local()
        except ReductionFailed:
            raise
        except Exception as exc:
            raise self._reducer.fail(f"{type(exc).__name__}: {exc}") from exc

    def call(self, *, more: bool = True) -> None:
        """Exchange whether there is `more`. Leaves `loop`, or raises ReductionFailed, where some
        ranks have no more and others have.
        """
        words = torch.zeros(self._num_ranks, dtype=torch.int32)
        words[self._rank] = int(more)
        with between_steps(self._reducer, "whether each rank has more data"):
            try:
                self._group.allreduce([words], dist.ReduceOp.SUM, self._timeout).wait()
            except RuntimeError as exc:
                raise translate(exc) from exc
        ended = [rank for rank, word in enumerate(words.tolist()) if not word]
        if len(ended) not in (0, self._num_ranks):
            raise self._reducer.fail(self._uneven(ended)) if self._throws else _DataEnded
        self._num_forwards += 1

    def _uneven(self, ended: Sequence[int]) -> str:
        return (
            f"the data of rank {', '.join(map(str, ended))} ended after {self._num_forwards} "
            "reduced batches, and other ranks have more: give every rank as many (drop_last=True, "
            "or a sampler that pads), or leave out throw_on_early_termination to end together"
        )


class _DataEnded(DdpError):
    """Leaves the training loop on a rank; `loop` swallows it."""
