"""Which cause is named when a job ends badly, and how far its ranks were. No processes."""

from typing import Any

import pytest

from jobs.errors import RunFailed
from jobs.progress import Progress
from jobs.watch import Watch


def watch_of(num_nodes: int = 2) -> Watch:
    names = [f"node{k}" for k in range(num_nodes)]
    return Watch(node_of=[0, 1], node_names=names, timeout_s=5.0, started_s=0.0)


def message(rank: int, **data: Any) -> dict[str, Any]:
    return {"event": "message", "rank": rank, "data": data}


def phase(rank: int, name: str, done: int) -> dict[str, Any]:
    return message(rank, kind="phase", phase=name, done=done, total=9)


def test_a_signal_outranks_what_ranks_told_and_their_exits() -> None:
    watch = watch_of()
    watch.take(0, message(0, kind="failed", message="peer closed"), 1.0)
    watch.take(0, {"event": "exit", "rank": 0, "status": 1, "signal": None}, 1.1)
    watch.take(1, {"event": "exit", "rank": 1, "status": None, "signal": "SIGKILL"}, 1.2)
    assert not watch.ended(1.5)  # the cause may still come
    assert watch.ended(2.1)
    cause = watch.cause()
    assert cause is not None
    assert cause.message.startswith("rank 1 (node1) was killed by SIGKILL")


def test_an_abort_is_what_follows_from_another_signal() -> None:
    watch = watch_of()
    watch.take(0, {"event": "exit", "rank": 0, "status": None, "signal": "SIGABRT"}, 1.0)
    watch.take(1, {"event": "exit", "rank": 1, "status": None, "signal": "SIGKILL"}, 1.1)
    cause = watch.cause()
    assert cause is not None
    assert "rank 1" in cause.message


def test_an_exit_without_a_word_outranks_what_peers_told() -> None:
    watch = watch_of()
    watch.take(0, message(0, kind="failed", message="peer closed"), 1.0)
    watch.take(0, {"event": "exit", "rank": 0, "status": 1, "signal": None}, 1.1)
    watch.take(1, {"event": "exit", "rank": 1, "status": 3, "signal": None}, 1.2)
    cause = watch.cause()
    assert cause is not None
    assert cause.message.startswith("rank 1 (node1) ended with exit status 3")


def test_ranks_that_do_not_get_on_are_named() -> None:
    watch = watch_of()
    for rank, done in ((0, 1), (1, 1), (0, 2)):
        watch.take(rank, phase(rank, "train", done), 1.0)
    assert not watch.ended(20.0)
    assert watch.ended(21.1)  # 5 s timeout and 15 s of grace after the last report
    cause = watch.cause()
    assert cause is not None
    assert "20 s: rank 1 (node1) after train step 1" in cause.message


def test_a_start_that_takes_too_long_names_the_silent_agent() -> None:
    watch = watch_of()
    watch.take(0, {"event": "ready", "port": 1, "listen_fd": 3, "cores": 2}, 1.0)
    assert not watch.ended(89.0)
    assert watch.ended(90.1)
    cause = watch.cause()
    assert cause is not None
    assert "agent of node1: not started after 90 s" in cause.message


def test_nothing_is_wrong_when_all_have_finished() -> None:
    watch = watch_of()
    for rank in (0, 1):
        watch.take(rank, message(rank, kind="finished"), 1.0)
        watch.take(rank, {"event": "exit", "rank": rank, "status": 0, "signal": None}, 1.1)
        watch.take(rank, {"event": "done"}, 1.2)
    assert watch.ended(1.3)
    assert watch.cause() is None


def test_progress_needs_every_rank() -> None:
    progress = Progress(2, 10.0)

    def report(rank: int, phase: str, done: int, now_s: float, loss: float | None = None) -> Any:
        data = {"phase": phase, "done": done, "total": 4, "loss": loss, "step_s": 0.1}
        return progress.take(rank, data, now_s)

    assert report(0, "start", 1, 12.0) is None
    assert not progress.started()
    assert report(1, "start", 1, 13.0).elapsed_s == pytest.approx(3.0)
    assert progress.started()
    report(0, "train", 1, 14.0, 4.0)
    assert report(1, "train", 1, 14.5, 3.0).loss == pytest.approx(3.5)
    report(1, "train", 2, 15.0, 2.0)
    assert progress.behind() == [0]
    assert progress.place(1) == "after train step 2"
    done = report(0, "train", 2, 15.5, 2.0)
    assert (done.first_loss, done.loss) == (pytest.approx(3.5), pytest.approx(2.0))
    assert done.remaining_s == pytest.approx(2.5)  # 2.5 s for two of four


def test_a_rank_that_was_stopped_is_the_cause_once_others_waited_in_vain() -> None:
    watch = watch_of()
    watch.take(1, {"event": "stopped", "rank": 1}, 1.0)
    watch.take(0, {"event": "stopped", "rank": 0}, 1.0)
    watch.take(0, {"event": "continued", "rank": 0}, 1.5)
    assert not watch.ended(3.0)
    watch.take(0, message(0, kind="failed", message="rank 1 sent nothing for 5 s"), 6.0)
    assert watch.ended(7.1)
    cause = watch.cause()
    assert cause is not None
    assert cause.message.startswith("rank 1 (node1) was stopped by a signal")
    assert cause.seen == "rank 0 (node0): rank 1 sent nothing for 5 s"


def test_a_stopped_rank_is_not_waited_for_any_longer_than_peers_do() -> None:
    """Also at the rendezvous, where its peers may be stuck in a call that has no end."""
    watch = watch_of()
    watch.take(1, {"event": "stopped", "rank": 1}, 1.0)
    assert not watch.ended(10.9)
    watch.slept(2.0)
    assert not watch.ended(12.9)
    assert watch.wait_s(12.9) == pytest.approx(0.1)
    assert watch.ended(13.0)
    cause = watch.cause()
    assert cause is not None
    assert cause.message.startswith("rank 1 (node1) was stopped by a signal (SIGSTOP)")


def test_a_stopped_agent_is_the_cause_of_what_its_ranks_do_not_say() -> None:
    watch = watch_of()
    for rank in (0, 1):
        watch.take(rank, phase(rank, "train", 1), 1.0)
    watch.take(1, {"event": "stopped"}, 1.5)
    watch.take(0, phase(0, "train", 2), 9.0)
    assert not watch.ended(11.4)
    assert watch.ended(11.5)
    cause = watch.cause()
    assert cause is not None
    assert cause.message == "the agent of node1 (ranks 1) was stopped by a signal (SIGSTOP)"


def test_an_agent_that_goes_on_is_no_cause() -> None:
    watch = watch_of()
    watch.take(1, {"event": "stopped"}, 1.5)
    watch.take(1, {"event": "continued"}, 2.0)
    assert not watch.ended(20.0)


def test_a_rank_that_gets_on_does_not_hide_one_that_does_not() -> None:
    watch = watch_of()
    for rank in (0, 1):
        watch.take(rank, phase(rank, "train", 1), 1.0)
    for now in range(2, 22):
        watch.take(0, phase(0, "train", now), float(now))
    assert watch.ended(21.1)
    cause = watch.cause()
    assert cause is not None
    assert cause.message == "not heard of for 20 s: rank 1 (node1) after train step 1"


def test_time_in_which_nobody_watched_is_not_held_against_the_ranks() -> None:
    watch = watch_of()
    for rank in (0, 1):
        watch.take(rank, phase(rank, "train", 1), 1.0)
    watch.slept(100.0)
    assert not watch.ended(120.0)
    assert watch.ended(121.1)


def test_the_end_of_the_lab_outranks_what_followed_from_it() -> None:
    watch = watch_of()
    watch.take(1, {"event": "exit", "rank": 1, "status": None, "signal": "SIGKILL"}, 0.9)
    watch.take(0, {"event": "closed", "status": 137, "errors": ["nsenter: gone"]}, 1.0)
    watch.take(1, {"event": "closed", "status": 137, "errors": []}, 1.1)
    assert watch.ended(1.2)
    assert watch.lost_nodes() == [0, 1]
    end = RunFailed("the lab is gone")
    assert watch.cause(end) is end
    cause = watch.cause()
    assert cause is not None
    assert "rank 1" in cause.message


def test_where_jobs_take_turns_a_rank_has_finished_when_all_have() -> None:
    names = [f"node{k}" for k in range(2)]
    watch = Watch(
        node_of=[0, 1], node_names=names, timeout_s=5.0, started_s=0.0, job_names=["ring", "hier"]
    )
    for rank in (0, 1):
        watch.take(rank, message(rank, kind="finished", job=0), 1.0)
    watch.take(0, message(0, kind="finished", job=1), 1.1)
    for rank in (0, 1):
        watch.take(rank, {"event": "exit", "rank": rank, "status": 0, "signal": None}, 1.2)
        watch.take(rank, {"event": "done"}, 1.3)
    assert watch.ended(1.4)
    cause = watch.cause()
    assert cause is not None
    assert cause.message.startswith("rank 1 (node1) ended without finishing")


def test_where_jobs_take_turns_each_has_its_own_progress() -> None:
    progress = Progress(1, 0.0, ["ring", "hier"])

    def report(job: int, done: int, loss: float, now_s: float) -> Any:
        data = {"job": job, "phase": "train", "done": done, "total": 4, "loss": loss}
        return progress.take(0, {**data, "step_s": 0.1}, now_s)

    first = report(0, 1, 4.0, 1.0)
    other = report(1, 1, 5.0, 3.0)
    assert (first.job, first.elapsed_s, first.first_loss) == (0, 1.0, 4.0)
    assert (other.job, other.elapsed_s, other.first_loss) == (1, 2.0, 5.0)
    again = report(0, 2, 3.9, 3.5)
    assert (again.elapsed_s, again.first_loss, again.loss) == (1.5, 4.0, 3.9)
    assert progress.place(0) == "after train step 2 of ring"
