"""Whole ranks over loopback that cannot do what they are told: one clear message on all of them."""

from pathlib import Path

from tests.jobs.ranks import RunRanks, arguments, failures, records


def test_a_rank_that_fails_on_its_way_tells_the_others_why(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    asked = arguments(tmp_path / "run", "hier")
    asked[1]["test_file_limit_bytes"] = 9000
    ranks = run_ranks(asked)
    messages = failures(ranks)
    assert messages[0] == messages[1]
    assert messages[0].startswith("rank 1: ")
    assert "rank1.jsonl: File too large; every step is written down" in messages[0]
    started = [event for event in ranks[0]["events"] if event.get("phase") == "no_network"]
    assert started  # it was on its way
    assert all(rank.end is None for rank in records(tmp_path / "run"))


def test_data_that_is_too_short(run_ranks: RunRanks, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(40))
    ranks = run_ranks(arguments(tmp_path / "run", "hier", f"data.path={tmp_path}/text"))
    for rank, message in zip(ranks, failures(ranks), strict=True):
        assert f"data.path: {tmp_path}/text: 40 bytes, 2 windows" in message
        assert "at least 65 bytes" in message
        assert rank["log"].splitlines() == [message]


def test_ranks_that_read_different_texts(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = arguments(tmp_path / "run", "hier")
    for rank, argument in enumerate(asked):
        path = tmp_path / str(rank)
        path.write_bytes(bytes([rank]) * 4000)
        argument["job"]["data"]["path"] = str(path)
    messages = failures(run_ranks(asked))
    assert messages[0] == messages[1]
    assert "rank 1 read another text than rank 0" in messages[0]


def test_models_that_differ(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = arguments(tmp_path / "run", "hier")
    asked[1]["job"]["model"]["width"] = 16
    messages = failures(run_ranks(asked))
    assert messages[0] == messages[1]
    assert "the models differ" in messages[0]


def test_a_rank_that_does_not_come_is_named(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = arguments(tmp_path / "run", "hier", "ddp.timeout_s=2", node_of=(0, 1, 2))
    messages = failures(run_ranks([asked[0], asked[2]]))
    assert "rank 1 did not come within 2 s" in messages[0]
    assert "did not come within 2 s" in messages[1]


def test_an_unknown_network_interface_is_named(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = arguments(tmp_path / "run", "hier", node_of=(0,))
    asked[0]["interface"] = "nope0"
    (message,) = failures(run_ranks(asked))
    assert "'nope0'" in message
    assert "lo" in message


def test_an_unknown_key_is_refused_and_only_the_log_has_the_traceback(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    asked = arguments(tmp_path / "run", "hier", node_of=(0,))
    asked[0]["colour"] = "red"
    ranks = run_ranks(asked)
    (message,) = failures(ranks)
    assert "colour" in message
    assert "Traceback" not in message
    assert "Traceback" in ranks[0]["log"]
