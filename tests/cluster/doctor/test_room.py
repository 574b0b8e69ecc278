"""Whether there is room: pure judgement of numbers, and numbers read from this machine."""

import os
from pathlib import Path

import pytest

from cluster.doctor import room
from cluster.doctor.checks import FAULT, OK, WARNING, Check
from cluster.doctor.room import (
    Room,
    Size,
    disk_check,
    measure_room,
    room_checks,
    shared_memory_check,
    size_words,
)

LARGE = Room(cores=64, memory_bytes=10**11, open_files=1024, processes=None)
SIZE = Size(2, 2)


def checks(size: Size = SIZE, **less: object) -> dict[str, Check]:
    room = Room(**{**vars(LARGE), **less})  # type: ignore[arg-type]
    return {check.name: check for check in room_checks(room, size)}


def test_a_large_machine_has_room() -> None:
    assert {name: each.state for name, each in checks().items()} == {
        "cores": OK,
        "memory": OK,
        "limits": OK,
    }


def test_memory_is_counted_by_nodes_and_ranks() -> None:
    assert Size(2, 2).memory_bytes == 60_000_000 + 2 * 230_000_000 + 4 * 100_000_000
    assert Size(2, 4).memory_bytes < Size(4, 2).memory_bytes


@pytest.mark.parametrize(
    ("memory_bytes", "state"),
    [(919_999_999, FAULT), (920_000_000, WARNING), (1_379_999_999, WARNING), (1_380_000_000, OK)],
)
def test_memory_that_is_too_little_or_just_enough(memory_bytes: int, state: str) -> None:
    check = checks(memory_bytes=memory_bytes)["memory"]
    assert check.state == state
    assert "2 nodes with 4 ranks take about 920 MB" in check.seen
    assert ("fewer nodes or ranks" in " ".join(check.fix)) == (state != OK)


@pytest.mark.parametrize(("cores", "state"), [(4, OK), (3.9, WARNING), (0.5, WARNING)])
def test_fewer_cores_than_ranks_is_a_warning_that_says_what_it_means(
    cores: float, state: str
) -> None:
    check = checks(cores=cores)["cores"]
    assert check.state == state
    assert check.seen.startswith(f"{cores:.3g} for 4 ranks")
    assert ("ranks take turns" in check.seen) == (state == WARNING)


def test_a_limit_on_open_files_or_processes_that_a_lab_would_hit() -> None:
    check = checks(Size(2, 8), open_files=63)["limits"]
    assert check.state == FAULT
    assert "needs 64" in check.seen
    assert check.fix[0].startswith("ulimit -n 1024")
    assert checks(Size(2, 8), open_files=64)["limits"].state == OK
    check = checks(processes=51)["limits"]
    assert check.state == FAULT
    assert "needs about 52" in check.seen
    assert "ulimit -u" in check.fix[0] and "--pids-limit" in check.fix[1]
    assert checks(processes=52)["limits"].state == OK


def test_small_shared_memory_names_both_sizes_and_both_fixes(tmp_path: Path) -> None:
    there = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert shared_memory_check(999, str(tmp_path), needed_bytes=1000).state == FAULT
    small = shared_memory_check(there + 1, str(tmp_path), needed_bytes=there + 1)
    assert small.state == WARNING
    assert f"{tmp_path} has only {size_words(there)}; a lab has its own" in small.seen
    assert "remount,size=" in small.fix[0] and "--shm-size" in small.fix[1]
    assert shared_memory_check(there + 1, str(tmp_path), needed_bytes=there).state == OK
    assert shared_memory_check(None, str(tmp_path), needed_bytes=there).state == OK
    gone = shared_memory_check(None, str(tmp_path / "gone"))
    assert gone.state == FAULT
    assert gone.fix[0].endswith(f"mkdir -m 1777 {tmp_path / 'gone'}")


@pytest.mark.parametrize(
    ("blocks", "files", "state"),
    [
        (10_000_000_000, 10**6, OK),
        (499_000_000, 10**6, WARNING),
        (19_000_000, 10**6, FAULT),
        (10_000_000_000, 99, FAULT),
    ],
)
def test_a_full_disk_is_told_before_a_run_fails(
    blocks: int, files: int, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status = os.statvfs_result((1, 1, blocks, blocks, blocks, 10**6, files, files, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: status)
    check = disk_check(tmp_path / "runs" / "not" / "yet")
    assert check.state == state
    assert bool(check.fix) == (state != OK)
    if state != OK:
        assert check.fix[0] == "make runs-clean KEEP=10"


def test_sizes_are_words() -> None:
    sizes = (64_000_000, 920_000_000, 1_234_000_000, 25_300_000_000)
    assert [size_words(size) for size in sizes] == ["64 MB", "920 MB", "1.2 GB", "25 GB"]


def test_what_control_groups_leave_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    free = measure_room()
    assert 0 < free.cores <= (os.cpu_count() or 1)
    assert free.memory_bytes > 0 and free.open_files > 0
    monkeypatch.setattr(room.cgroups, "cores", lambda: 0.25)
    monkeypatch.setattr(room.cgroups, "memory_left_bytes", lambda: 4096)
    monkeypatch.setattr(room.cgroups, "processes_left", lambda: 3)
    held = measure_room()
    assert (held.cores, held.memory_bytes, held.processes) == (0.25, 4096, 3)


def test_an_ordinary_users_own_threads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(room.resource, "getrlimit", lambda _which: (100, 100))
    monkeypatch.setattr(room.cgroups, "processes_left", lambda: None)
    assert measure_room().processes == 100
    monkeypatch.setattr(room, "_own_threads", lambda: 70)
    assert measure_room().processes == 30
