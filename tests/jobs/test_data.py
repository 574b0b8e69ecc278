import hashlib
import os
from itertools import chain
from pathlib import Path

import pytest
import torch

from jobs import data
from jobs.data import Batches, Position, Windows, check_enough, load_text
from jobs.errors import DataError

CONTEXT = 4


def windows(num_windows: int) -> Windows:
    """Window i starts with byte 4i; no two bytes are equal."""
    return Windows(bytes(range(num_windows * CONTEXT + 1)), CONTEXT)


def taken(batches: Batches, num_batches: int) -> list[int]:
    """The windows of so many batches, by number."""
    firsts = [batches.next()[0][:, 0] for _ in range(num_batches)]
    return (torch.cat(firsts) // CONTEXT).tolist()


def shares(num_windows: int, world_size: int, epochs: int, seed: int = 0) -> list[list[list[int]]]:
    """The windows that each rank takes in each epoch, when batches hold one sample."""
    per_epoch = -(-num_windows // world_size)
    ranks = [Batches(windows(num_windows), 1, rank, world_size, seed) for rank in range(world_size)]
    return [[taken(rank, per_epoch) for rank in ranks] for _ in range(epochs)]


def test_a_window_predicts_each_next_byte() -> None:
    inputs, targets = Batches(windows(5), 2, 0, 1, seed=0).next()
    assert inputs.shape == targets.shape == (2, CONTEXT)
    assert inputs.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)


@pytest.mark.parametrize(
    ("num_bytes", "expected"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (10, 2)]
)
def test_number_of_windows(num_bytes: int, expected: int) -> None:
    assert len(Windows(bytes(num_bytes), CONTEXT)) == expected


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_each_epoch_all_ranks_together_see_the_whole_text(world_size: int) -> None:
    epochs = shares(12, world_size, epochs=3)
    for epoch in epochs:
        assert sorted(chain(*epoch)) == list(range(12))
    assert epochs[0] != epochs[1] != epochs[2]


def test_windows_that_do_not_divide_are_all_seen() -> None:
    (epoch,) = shares(7, 3, epochs=1)
    assert {len(share) for share in epoch} == {3}
    assert set(chain(*epoch)) == set(range(7))


def test_fewer_windows_than_ranks_still_gives_each_rank_one() -> None:
    (epoch,) = shares(3, 7, epochs=1)
    assert [len(share) for share in epoch] == [1] * 7
    assert set(chain(*epoch)) == {0, 1, 2}


def test_the_seed_fixes_the_order() -> None:
    assert shares(12, 2, 1, seed=1) == shares(12, 2, 1, seed=1)
    assert shares(12, 2, 1, seed=1) != shares(12, 2, 1, seed=2)


def test_a_batch_is_full_also_at_the_end_of_an_epoch() -> None:
    batches = Batches(windows(5), 3, 0, 1, seed=0)
    seen = taken(batches, 5)
    assert sorted(seen[:5]) == sorted(seen[5:10]) == sorted(seen[10:]) == list(range(5))


def test_position_brings_back_the_same_batches() -> None:
    batches = Batches(windows(10), 3, 1, 2, seed=0)
    taken(batches, 4)
    before = batches.position
    expected = taken(batches, 5)
    assert before != Position(0, 0)
    batches.position = before
    assert taken(batches, 5) == expected


def test_python_own_library_is_the_default() -> None:
    text = load_text(None)
    assert b"class ThreadingTCPServer" in text.content
    assert len(text.content) > 1_000_000
    assert text.sha256 == hashlib.sha256(text.content).hexdigest()


def test_a_folder_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_bytes(b"two")
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "c.txt").write_bytes(b"three")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"hidden")
    assert load_text(str(tmp_path)).content == b"onetwothree"


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x00\xffab")
    text = load_text(str(tmp_path / "x"))
    assert (text.content, text.source) == (b"\x00\xffab", str(tmp_path / "x"))


def assert_three_parts(error: DataError, seen: str) -> None:
    assert seen in error.message
    assert error.rule and error.fix


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_text(str(tmp_path / "gone"))
    assert_three_parts(caught.value, f"{tmp_path}/gone: not found")


@pytest.mark.parametrize("folder", [True, False])
def test_empty_data_is_named(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "empty"
    path.mkdir() if folder else path.write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load_text(str(path))
    assert_three_parts(caught.value, f"{path}: empty")


def test_a_pipe_is_no_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        load_text(str(tmp_path / "pipe"))


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x").write_bytes(b"text")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError) as caught:
        load_text(str(tmp_path))
    assert_three_parts(caught.value, f"{tmp_path}/x: Permission denied")


def test_more_than_memory_should_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(bytes(2 << 20))
    monkeypatch.setattr(data, "MAX_TEXT_BYTES", 1 << 20)
    with pytest.raises(DataError) as caught:
        load_text(str(tmp_path))
    assert_three_parts(caught.value, "more than 1 MiB")


def test_too_short_data_says_how_much_is_needed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(64))
    text = load_text(str(tmp_path / "x"))
    short = Windows(text.content, CONTEXT)
    with pytest.raises(DataError) as caught:
        check_enough(short, text, samples_per_step=16, context=CONTEXT)
    assert_three_parts(caught.value, "64 bytes, 15 windows")
    assert "at least 65 bytes" in str(caught.value)
    check_enough(Windows(bytes(65), CONTEXT), text, samples_per_step=16, context=CONTEXT)
