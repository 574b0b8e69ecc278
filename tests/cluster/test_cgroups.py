"""What control groups leave, of both versions, from folders made here."""

from pathlib import Path

from cluster.cgroups import cores, memory_left_bytes, processes_left


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def own(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "own"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_version_2_the_tightest_of_all_above_counts(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    put(mount / "user" / "mei", memory__max="max", cpu__max="max 100000", pids__max="max")
    put(
        mount / "user",
        memory__max="1000000000",
        memory__current="900000000",
        memory__stat="anon 5\ninactive_file 300000000",
        cpu__max="150000 100000",
        pids__max="100",
        pids__current="90",
    )
    file = own(tmp_path, "0::/user/mei")
    assert memory_left_bytes(mount, file) == 400_000_000
    assert cores(mount, file) == 1.5
    assert processes_left(mount, file) == 10


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    put(
        mount / "memory" / "a",
        memory__limit_in_bytes="500000000",
        memory__usage_in_bytes="100000000",
        memory__stat="total_inactive_file 50000000\ninactive_file 1",
    )
    put(mount / "cpu,cpuacct" / "a", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    put(mount / "pids" / "a", pids__max="20", pids__current="5")
    file = own(tmp_path, "4:memory:/a", "3:cpu,cpuacct:/a", "8:pids:/a", "0::/")
    assert memory_left_bytes(mount, file) == 450_000_000
    assert cores(mount, file) == 0.5
    assert processes_left(mount, file) == 15


def test_no_limit_is_none(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    put(
        mount / "memory",
        memory__limit_in_bytes="9223372036854771712",
        memory__usage_in_bytes="1",
    )
    put(mount / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    put(mount / "pids", pids__max="max", pids__current="5")
    file = own(tmp_path, "4:memory:/gone/elsewhere", "1:cpu:/", "8:pids:/")
    assert memory_left_bytes(mount, file) is None
    assert cores(mount, file) is None
    assert processes_left(mount, file) is None
    assert memory_left_bytes(mount, tmp_path / "missing") is None


def test_a_folder_seen_from_a_container_is_at_the_top(tmp_path: Path) -> None:
    """There the path is the one of the machine outside, and the limit lies in the mount itself."""
    mount = tmp_path / "mount"
    put(mount, memory__max="300", memory__current="100", memory__stat="inactive_file 0")
    assert memory_left_bytes(mount, own(tmp_path, "0::/docker/0123")) == 200
