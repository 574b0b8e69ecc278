"""Why a job stops: the first cause, kept in the store, the same text on every rank.

Owns who may write it (the first) and what is said when the store itself is gone.
"""

from torch._C._distributed_c10d import Store

from ddp.errors import ReductionFailed

KEY = "first cause"


class FirstCause:
    """The one reason for which all ranks of a wrapper stop."""

    def __init__(self, store: Store) -> None:
        self._store = store

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


def stopped(reason: str) -> ReductionFailed:
    """What a call on a wrapper raises after it has failed."""
    return ReductionFailed(f"this wrapper has stopped and cannot be used again: {reason}")
