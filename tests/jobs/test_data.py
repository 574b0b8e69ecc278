import hashlib
import io
import os
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from jobs import text as text_module
from jobs.data import Batches, Position, Windows
from jobs.errors import DataError
from jobs.text import check_enough, load_text

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
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x").write_bytes(b"text")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError) as caught:
        load_text(str(tmp_path))
    assert_three_parts(caught.value, f"{tmp_path}/x: Permission denied")


def test_more_than_memory_should_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(bytes(2 << 20))
    monkeypatch.setattr(text_module, "MAX_TEXT_BYTES", 1 << 20)
    with pytest.raises(DataError) as caught:
        load_text(str(tmp_path))
    assert_three_parts(caught.value, "more than 1 MiB")


def test_too_short_data_says_how_much_is_needed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(64))
    text = load_text(str(tmp_path / "x"))
    with pytest.raises(DataError) as caught:
        check_enough(text, samples_per_step=16, context=CONTEXT)
    assert_three_parts(caught.value, "64 bytes, 15 windows")
    assert "at least 65 bytes" in str(caught.value)
    check_enough(replace(text, content=bytes(65)), samples_per_step=16, context=CONTEXT)


def test_a_folder_that_cannot_be_looked_into_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        yield from inside(path)

    inside = Path.iterdir
    (tmp_path / "open" / "closed").mkdir(parents=True)
    (tmp_path / "open" / "x").write_bytes(b"text")
    monkeypatch.setattr(Path, "iterdir", refuse)
    for path in (tmp_path / "open", tmp_path / "open" / "closed"):
        with pytest.raises(DataError) as caught:
            load_text(str(path))
        assert_three_parts(caught.value, f"{tmp_path}/open/closed: Permission denied")


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    folder, outside = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    outside.mkdir()
    (outside / "x").write_bytes(b"linked")
    (folder / "a").write_bytes(b"own")
    (folder / "b").symlink_to(outside / "x")
    (folder / "c").symlink_to(outside)
    (folder / "d").symlink_to(folder)  # round and round
    assert load_text(str(folder)).content == b"ownlinked"
    assert load_text(str(folder / "c")).content == b"linked"  # named on purpose


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("target", "told"),
    [("link", "Too many levels of symbolic links"), ("gone", "a link to something that is not")],
)
def test_links_that_lead_nowhere_are_named(
    tmp_path: Path, target: str, told: str, named: bool
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(DataError) as caught:
        load_text(str(tmp_path / "link" if named else tmp_path))
    assert_three_parts(caught.value, f"{tmp_path}/link: {told}")


def test_a_file_without_a_size_is_read_no_further_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those below /proc: 0 bytes long, until they are read."""

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size == 101
            return bytes(size)

    monkeypatch.setattr(text_module, "MAX_TEXT_BYTES", 100)
    monkeypatch.setattr(Path, "open", lambda *_: Endless())
    assert Path("/proc/self/status").stat().st_size == 0
    with pytest.raises(DataError, match="more than 0 MiB"):
        load_text("/proc/self/status")


def test_a_folder_is_not_walked_to_its_end_once_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "z").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "z" / "bad").symlink_to(tmp_path / "gone")  # never reached
    monkeypatch.setattr(text_module, "MAX_TEXT_FILES", 2)
    with pytest.raises(DataError, match="more than 2 files"):
        load_text(str(tmp_path))


def test_names_that_are_no_text_can_be_read_and_told(tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    Path(name).write_bytes(b"caf\xe9")
    assert load_text(name).source == f"{tmp_path}/caf\\xe9"
    assert load_text(str(tmp_path)).content == b"caf\xe9"
    with pytest.raises(DataError) as caught:
        load_text(name + "x")
    assert_three_parts(caught.value, f"{tmp_path}/caf\\xe9x: not found")


def test_a_text_that_was_read_is_held_once() -> None:
    content = bytearray(b"abcdefgh")
    held = Windows(content, CONTEXT)
    content[0] = ord("z")
    assert held[0][0] == ord("z")
