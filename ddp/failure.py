"""Why a job stops: the first cause, kept in the store, the same text on every rank.

Owns who may write it (the first), what is said when the store itself is gone or silent, and how
long the rank that keeps the store stays for the others to read it.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from torch._C._distributed_c10d import Store

from ddp.errors import PeerTimeout, ReductionFailed, TransportError

KEY = "first cause"
LEAVING = "ranks that leave"
LINGER_S = 1.0
ANSWER_S = 2.0
SYMPTOM_S, STAGE_S = 0.3, 0.1

Answer = TypeVar("Answer")


class FirstCause:
    """The one reason for which all ranks of a wrapper stop."""

    def __init__(self, store: Store, rank: int, num_ranks: int) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks

    def publish(self, reason: str) -> str:
        """Offer `reason`; returns the reason that was there first. Never raises."""

        def offer() -> str:
            return str(self._store.compare_set(KEY, "", reason), "utf-8")

        return _ask(offer, reason)  # the rank that keeps the store is gone: our own must do

    def publish_error(self, error: Exception, reason: str) -> str:
        """As `publish`, for what went wrong with a peer as late as somebody nearer to the cause may
        need: of ranks that wait for one another, the one at the earliest stage waits for the rank
        that stalls.
        """
        if isinstance(error, PeerTimeout):
            late_s = min(error.stage * STAGE_S, SYMPTOM_S)
            return self.publish_symptom(reason, late_s) if late_s else self.publish(reason)
        broken = isinstance(error, TransportError)
        return self.publish_symptom(reason) if broken else self.publish(reason)

    def publish_symptom(self, reason: str, late_s: float = SYMPTOM_S) -> str:
        """As `publish`, for a connection that broke: the peer that broke it may be about to say
        why, so its own words are waited for a little.
        """
        deadline = time.monotonic() + late_s
        while (cause := self.read()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return cause or self.publish(reason)

    def read(self) -> str | None:
        """The reason, if there is one and the store still answers."""

        def look() -> str | None:
            return self._store.get(KEY).decode() if self._store.check([KEY]) else None

        return _ask(look, None)

    def settle(self) -> None:
        """This rank knows."""
        leave_together(self._store, self._rank, self._num_ranks)


def leave_together(store: Store, rank: int, num_ranks: int) -> None:
    """This rank fails, and needs the store no more. Rank 0, which keeps it as a rule, stays until
    that is so for all; no longer than LINGER_S, since a rank that died never says so.
    """
    deadline = time.monotonic() + LINGER_S
    num_left = _ask(lambda: store.add(LEAVING, 1), num_ranks)
    while rank == 0 and num_left < num_ranks and time.monotonic() < deadline:
        time.sleep(0.01)
        num_left = _ask(lambda: store.add(LEAVING, 0), num_ranks)


def stopped(reason: str) -> ReductionFailed:
    """What a call on a wrapper raises after it has failed."""
    return ReductionFailed(f"this wrapper has stopped and cannot be used again: {reason}")


def _ask(question: Callable[[], Answer], otherwise: Answer) -> Answer:
    """The store's answer; `otherwise` where it is gone, or its process stopped or cut off.

    On a thread of its own, because the store's calls wait for ever where nobody answers.
    """
    answers: SimpleQueue[Answer] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(question())
        except RuntimeError:
            answers.put(otherwise)

    Thread(target=ask, name="ddp-store", daemon=True).start()
    try:
        return answers.get(timeout=ANSWER_S)
    except Empty:
        return otherwise
