"""What ranks that somebody else started say: how far they are, and why they failed."""

from jobs.torchrun.telling import Progress, failure_of

BROKEN = (
    "rank 0: RuntimeError: [/w/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed "
    "by peer [198.18.0.11]:34500. This is typically caused by a remote worker crashing. Check it!"
)


def test_a_connection_that_broke_is_told_without_torchs_source() -> None:
    failure = failure_of(BROKEN)
    assert failure.message == "rank 0: Connection closed by peer [198.18.0.11]:34500"
    assert failure.rule and "torchrun there names the rank" in failure.fix[0]
    own = failure_of("rank 3: bucket 1, stage 0: parameter w has no gradient [in /data/gloo]")
    assert own.message.endswith("[in /data/gloo]") and own.rule is None


def test_progress_is_told_at_the_end_of_each_phase_and_seldom_in_it() -> None:
    said: list[str] = []
    progress = Progress(said.append)
    progress.phase("start", 1, 1)
    for done in range(1, 101):
        progress.phase("train", done, 100, loss=2.5, step_s=0.25)
    assert said == ["  ready\n", "  step 100/100  loss 2.500  250 ms\n"]
