"""Why a job stops: the first cause, kept in the store, the same text on every rank.

Owns who may write it (the first), what is said when the store itself is gone, and how long the
rank that keeps the store stays for the others to read it.
"""

import time
from contextlib import suppress

from torch._C._distributed_c10d import Store

from ddp.errors import ReductionFailed

KEY = "first cause"
TOLD = "ranks that know it"
LINGER_S = 1.0


class FirstCause:
    """The one reason for which all ranks of a wrapper stop."""

    def __init__(self, store: Store, rank: int, num_ranks: int) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks

    def publish(self, reason: str) -> str:
        """Offer `reason`; returns the reason that was there first. Never raises."""
        try:
            return str(self._store.compare_set(KEY, "", reason), "utf-8")
        except RuntimeError:  # the rank that keeps the store is gone: our own reason must do
            return reason

    def read(self) -> str | None:
        """The reason, if there is one and the store still answers. Never waits."""
        try:
            return self._store.get(KEY).decode() if self._store.check([KEY]) else None
        except RuntimeError:
            return None

    def settle(self) -> None:
        """This rank knows. Rank 0, which keeps the store as a rule, stays until the others do.

        No longer than LINGER_S: a rank that died never will.
        """
        with suppress(RuntimeError):
            self._store.add(TOLD, 1)
            deadline = time.monotonic() + LINGER_S
            while self._rank == 0 and time.monotonic() < deadline:
                if self._store.add(TOLD, 0) >= self._num_ranks:
                    return
                time.sleep(0.01)


def stopped(reason: str) -> ReductionFailed:
    """What a call on a wrapper raises after it has failed."""
    return ReductionFailed(f"this wrapper has stopped and cannot be used again: {reason}")
