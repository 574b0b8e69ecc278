"""How ranks that somebody else started find one another: the store, and who is missing or double.

Owns what the store's keys are called here. What ranks say there is `facts`.
"""

import json
import time
from datetime import timedelta
from ipaddress import ip_address

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ddp.failure import leave_together
from jobs.errors import LaunchError, WorkerError
from jobs.rankwords import ranks_words
from jobs.torchrun.environment import Seat
from jobs.torchrun.facts import RankFacts

LOOK_S = 0.05
REFUSED = "refused"


def open_store(seat: Seat, timeout_s: float) -> Store:
    """torchrun's own, or one that rank 0 keeps. Raises WorkerError where it cannot be reached."""
    timeout = timedelta(seconds=timeout_s)
    keeps = seat.store_prefix is None and seat.rank == 0
    try:
        store = TCPStore(
            seat.master_addr,
            seat.master_port,
            is_master=keeps,
            timeout=timeout,
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as exc:
        where = f"{seat.master_addr}:{seat.master_port}"
        raise WorkerError(
            f"rank {seat.rank}: cannot listen at {where}"
            if keeps
            else f"rank {seat.rank}: nobody answers at {where} within {timeout_s:g} s",
            rule="rank 0 listens at MASTER_ADDR and MASTER_PORT, and every rank can reach it"
            + _of_loopback(seat.master_addr),
            fix="give rank 0's own address on the fabric, and a port that is free there",
            seen=str(exc).partition("\n")[0],
        ) from exc
    return store if seat.store_prefix is None else PrefixStore(seat.store_prefix, store)


def _of_loopback(address: str) -> str:
    try:
        loopback = ip_address(address).is_loopback
    except ValueError:
        loopback = address == "localhost"
    return "; this address leads every machine to itself" if loopback else ""


def meet(store: Store, seat: Seat, own: RankFacts, timeout_s: float) -> list[RankFacts]:
    """What every rank says of itself, by rank.

    Raises LaunchError at once where counts differ or a rank is there twice, on all ranks that are
    there; WorkerError after `timeout_s`, naming the ranks that are missing.
    """
    try:
        _take_seat(store, seat, own)
        return _wait_for_all(store, seat, timeout_s)
    except RuntimeError as exc:
        raise WorkerError(
            f"rank {seat.rank} lost the store at {seat.master_addr}:{seat.master_port}",
            rule="rank 0, or torchrun beside it, keeps it until all ranks have ended",
            fix="look at what rank 0 said",
            seen=str(exc).partition("\n")[0],
        ) from exc
    except (LaunchError, WorkerError):
        leave_together(store, seat.rank, seat.world_size)  # who keeps the store stays a little
        raise


def _take_seat(store: Store, seat: Seat, own: RankFacts) -> None:
    announced = str(store.compare_set("world size", "", str(seat.world_size)), "utf-8")
    if announced != str(seat.world_size):
        _refuse(
            store,
            f"rank {seat.rank} ({own.host}) was told of {seat.world_size} ranks, "
            f"others of {announced}",
        )
    if store.add(f"seat/{seat.rank}", 1) > 1:
        _refuse(store, f"rank {seat.rank} is there twice, once on {own.host}")
    store.set(f"facts/{seat.rank}", json.dumps(own.to_json()))


def _refuse(store: Store, words: str) -> None:
    """Says so to all, also to those who wait; `_wait_for_all` raises it."""
    store.compare_set(REFUSED, "", words)


def _wait_for_all(store: Store, seat: Seat, timeout_s: float) -> list[RankFacts]:
    keys = [f"facts/{rank}" for rank in range(seat.world_size)]
    deadline = time.monotonic() + timeout_s
    while True:
        if store.check([REFUSED]):
            raise LaunchError(
                store.get(REFUSED).decode(),
                rule="every rank is started once, and all are told how many there are",
                fix="end what is left of an earlier start, and start all ranks in one way",
            )
        if store.check(keys):
            return [RankFacts(**json.loads(store.get(key))) for key in keys]
        if time.monotonic() > deadline:
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            raise WorkerError(
                f"{ranks_words(missing)} of {seat.world_size} did not come within {timeout_s:g} s",
                rule=f"all {seat.world_size} ranks start together",
                fix="look at what was said on their machines; ddp.timeout_s is how long we wait",
            )
        time.sleep(LOOK_S)
