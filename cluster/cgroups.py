"""What control groups leave to this process: processor time, memory, numbers of processes.

Reads both versions of them; None is `no limit that we can see`. Standard library only.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_NONE_V1 = 1 << 60
"""Version 1 writes a limit of about 2^63 where there is none."""


def cores(mount: Path = MOUNT, own: Path = OWN) -> float | None:
    """Processor seconds a second."""
    shares = []
    for folder in _folders("cpu", mount, own):
        quota, period = (
            _words(folder / "cpu.max")
            or (
                *_words(folder / "cpu.cfs_quota_us"),
                *_words(folder / "cpu.cfs_period_us"),
            )
            or ("max", "1")
        )
        if quota.isdigit():  # `max`, or -1, is no limit
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def memory_left_bytes(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """How much may still be taken; what is only kept of files counts as free."""
    left = []
    for folder in _folders("memory", mount, own):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is None or used is None or limit > _NONE_V1:
            continue
        kept = _statistics(folder / "memory.stat")
        files = kept.get("total_inactive_file", kept.get("inactive_file", 0))
        left.append(limit - used + files)
    return min(left, default=None)


def processes_left(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """How many processes and threads may still be started."""
    left = []
    for folder in _folders("pids", mount, own):
        limit, now = _number(folder / "pids.max"), _number(folder / "pids.current")
        if limit is not None and now is not None:
            left.append(limit - now)
    return min(left, default=None)


def _folders(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """This process's own folder for a controller and those above it, of either version."""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = mount / controllers if controllers else mount
            if controllers and not top.is_dir():
                top = mount / controller
            inside = Path(place.lstrip("/"))
            for part in (inside, *inside.parents):
                if (top / part).is_dir():
                    yield top / part


def _words(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text().split())
    except OSError:
        return ()


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _statistics(path: Path) -> Mapping[str, int]:
    words = _words(path)
    return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=False)}
