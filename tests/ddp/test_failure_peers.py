"""Peers and a store that die, stall or never come: named on every rank, and nobody hangs."""

import os
import re
import signal
from threading import Timer
from time import monotonic, sleep
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from ddp import failure
from ddp.failure import FirstCause
from tests.ddp.samples import Branches, message, the_one_text, train, wrap


def test_a_store_that_is_lost_while_wrapping_is_told(ranks: Any) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            sleep(0.2)
            os._exit(3)
        raise SystemExit(message(lambda: wrap(nn.Linear(2, 2))))

    _, other = ranks.outcomes(2, body)
    text = "TransportError: rank 1 lost the store before it had the model of every rank: "
    assert other.message.startswith(text)


def test_a_rank_that_does_not_wrap_is_named(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "LINGER_S", 0.3)  # that rank never says that it leaves

    def body(rank: int) -> str:
        return "" if rank == 1 else message(lambda: wrap(nn.Linear(2, 2), timeout_s=0.5))

    first, _, third = ranks.run(3, body)
    assert "PeerTimeout: rank 0 waited 0.5 s for the model of rank 1" in first
    assert "of rank 1" in third


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_kill_9_of_a_peer(
    ranks: Any, algorithm: str, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of rank 0, which keeps the store."""
    monkeypatch.setattr(failure, "LINGER_S", 0.3)  # a dead rank never says that it knows

    def body(rank: int) -> None:
        wrapped = wrap(Branches(), algorithm=algorithm, timeout_s=30)
        train(wrapped)
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        start = monotonic()
        text = message(lambda: train(wrapped))
        taken_s = monotonic() - start
        raise SystemExit(f"{taken_s:.3f} {text}")

    outcomes = ranks.outcomes(4, body, timeout_s=40)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            taken_s, text = outcome.message.split(" ", 1)
            assert text.startswith("ReductionFailed: rank ")
            assert "bucket" in text
            assert float(taken_s) < 30, "it must be noticed, not waited out"
    texts = {o.message.split(" ", 1)[1] for r, o in enumerate(outcomes) if r != victim}
    assert victim == 0 or len(texts) == 1


def test_a_peer_that_stalls_is_named(ranks: Any) -> None:
    def body(rank: int) -> str:
        wrapped = wrap(Branches(), timeout_s=1.0)
        train(wrapped)
        if rank == 1:
            sleep(2.0)
        return message(lambda: train(wrapped))

    text = the_one_text(ranks.run(3, body))
    assert "bucket 0, stage" in text
    assert re.search(r": rank 1 (sent|took) nothing for 1 s$", text)


def test_a_store_that_does_not_answer_holds_nobody_up(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0, which keeps the store, stands still without closing its connections."""
    monkeypatch.setattr(failure, "ANSWER_S", 0.2)

    def body(rank: int) -> None:
        wrapped = wrap(Branches(), timeout_s=0.5)
        train(wrapped)
        pids: list[Any] = [None, None]
        dist.all_gather_object(pids, os.getpid())
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        text = message(lambda: train(wrapped))
        os.kill(pids[0], signal.SIGKILL)
        raise SystemExit(text)

    _, other = ranks.outcomes(2, body, timeout_s=30)
    assert "ReductionFailed: rank 1: bucket 0, stage 0" in other.message
    assert "rank 0 sent nothing for 0.5 s" in other.message


@pytest.mark.parametrize("told", [True, False])
def test_a_broken_connection_is_a_symptom_while_its_cause_may_still_come(told: bool) -> None:
    """A rank that timed out breaks its connections; its peers must not be quicker with theirs."""
    store = HashStore()
    first, second = (FirstCause(store, rank, 2) for rank in range(2))
    cause = "rank 0: bucket 1, stage 2, message from rank 3: none within 5 s"
    later = Timer(0.1, lambda: first.publish(cause))
    if told:
        later.start()
    try:
        reason = second.publish_symptom("rank 1: Connection closed by peer")
    finally:
        later.cancel()
    assert reason == (cause if told else "rank 1: Connection closed by peer")
    assert first.read() == reason
