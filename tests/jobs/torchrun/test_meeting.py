"""How ranks find one another: who is missing is named, who is double is refused at once."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from jobs.errors import JobError, LaunchError, RecordsError, WorkerError
from jobs.torchrun.environment import Seat
from jobs.torchrun.facts import layout
from jobs.torchrun.folder import MARK, agree_on_folder
from jobs.torchrun.meeting import meet, open_store
from tests.jobs.torchrun.samples import a_seat, facts, four

LONG_S = 30.0


def together(bodies: list[Any]) -> list[Any]:
    """What each returns, or the error that it raises."""
    found: dict[int, Any] = {}

    def run(place: int) -> None:
        try:
            found[place] = bodies[place]()
        except JobError as exc:
            found[place] = exc

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive(), "a rank hangs"
    return [found[place] for place in range(len(bodies))]


def met(store: Store, seats: list[Seat], timeout_s: float) -> list[Any]:
    def one(seat: Seat) -> Any:
        return lambda: meet(store, seat, facts(seat.rank, 0, 0), timeout_s)

    return together([one(seat) for seat in seats])


def test_all_ranks_learn_what_each_says() -> None:
    answers = met(dist.HashStore(), [a_seat(rank) for rank in range(4)], LONG_S)
    for answer in answers:
        assert answer == [facts(rank, 0, 0) for rank in range(4)]


def test_missing_ranks_are_named() -> None:
    answers = met(dist.HashStore(), [a_seat(rank) for rank in (0, 2)], 0.2)
    for answer in answers:
        assert isinstance(answer, WorkerError)
        assert answer.message == "ranks 1, 3 of 4 did not come within 0.2 s"


@pytest.mark.parametrize(
    ("seats", "words"),
    [
        ([a_seat(0), a_seat(1), a_seat(1)], "rank 1 is there twice, once on host0"),
        ([a_seat(0, 4), a_seat(1, 8)], "ranks, others of"),
    ],
)
def test_ranks_that_do_not_add_up_are_refused_without_waiting(
    seats: list[Seat], words: str
) -> None:
    for answer in met(dist.HashStore(), seats, LONG_S):
        assert isinstance(answer, LaunchError), "and nobody waits for those who do not come"
        assert words in answer.message


def test_a_store_that_nobody_keeps() -> None:
    listener = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    taken = a_seat(0, master_addr="127.0.0.1", master_port=listener.port)
    with pytest.raises(WorkerError, match=f"cannot listen at 127.0.0.1:{listener.port}"):
        open_store(taken, 1.0)
    free = listener.port
    del listener
    nobody = a_seat(1, master_addr="127.0.0.1", master_port=free)
    with pytest.raises(WorkerError, match=r"nobody answers at .* leads every machine to itself"):
        open_store(nobody, 1.0)


def test_torchruns_own_store_is_used_where_it_keeps_one() -> None:
    agents = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"master_addr": "127.0.0.1", "master_port": agents.port}
    open_store(a_seat(0, store_prefix="/worker/attempt_1", **where), LONG_S).set("key", "told")
    assert agents.get("/worker/attempt_1/key") == b"told"


def folders(outs: list[Path], timeout_s: float = LONG_S) -> list[Any]:
    """What four ranks agree on; `outs[node]` is --out as that machine sees it."""
    store, where = dist.HashStore(), layout(four())

    def one(rank: int) -> Any:
        out = outs[where.node_of[rank]]
        return lambda: agree_on_folder(store, out, rank, where, timeout_s)

    return together([one(rank) for rank in range(4)])


def test_one_folder_that_all_see(tmp_path: Path) -> None:
    found = folders([tmp_path / "runs" / "x"] * 2)
    assert [it.shared for it in found] == [True] * 4
    assert {it.session.run_id for it in found} == {"x"}
    assert len({it.session for it in found}) == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["x"], "nothing lies aside"


def test_a_folder_on_each_machine(tmp_path: Path) -> None:
    found = folders([tmp_path / "a" / "x", tmp_path / "b" / "y"])
    assert [it.shared for it in found] == [False] * 4
    assert [it.folder.path.parent.name for it in found] == ["a", "a", "b", "b"]
    assert {it.session.run_id for it in found} == {"x"}, "rank 0's"


@pytest.mark.parametrize("taken", [0, 1])
def test_a_folder_that_is_taken_stops_all_ranks_and_stays(tmp_path: Path, taken: int) -> None:
    outs = [tmp_path / "a" / "x", tmp_path / "b" / "x"]
    outs[taken].mkdir(parents=True)
    (outs[taken] / "mine").write_text("kept")
    (outs[taken] / MARK).write_text("an earlier run")
    for answer in folders(outs):
        assert isinstance(answer, RecordsError)
        assert answer.message == f"{outs[taken]}: there already"
    assert (outs[taken] / "mine").read_text() == "kept"
    assert not outs[1 - taken].exists(), "what was made for this run is gone again"
