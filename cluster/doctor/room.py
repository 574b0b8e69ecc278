"""Whether there is room for a lab: cores, memory, shared memory, disk, numbers of processes.

Each check is pure, from numbers; `measure_room` reads them. Standard library only.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from cluster import cgroups
from cluster.doctor.checks import FAULT, OK, WARNING, Check
from cluster.packages import as_root

LAB_BYTES = 60_000_000
NODE_BYTES = 230_000_000
RANK_BYTES = 100_000_000
"""What the catalog's jobs were seen to take: 0.86 GB at 2x2, 1.21 GB at 2x4, 1.29 GB at 4x1
(proportional set sizes, PyTorch 2.13 for CPU): a node's agent holds torch, its ranks share it."""
COMFORT = 1.5
SHARED_BYTES = 256_000_000
"""Docker gives 64 MB, which programs of several processes are known to run out of."""
RUN_BYTES, COMFORTABLE_RUN_BYTES = 20_000_000, 500_000_000
RUN_FILES = 100
THREADS_A_RANK, THREADS_A_NODE = 10, 6
FILES, FILES_A_RANK = 32, 2


@dataclass(frozen=True)
class Room:
    """What this machine has left for us."""

    cores: float
    memory_bytes: int
    open_files: int
    processes: int | None
    """How many more processes and threads may be started; None where nothing limits them."""


@dataclass(frozen=True)
class Size:
    """How large a lab is asked for."""

    nodes: int
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def memory_bytes(self) -> int:
        return LAB_BYTES + self.nodes * NODE_BYTES + self.ranks * RANK_BYTES


def measure_room() -> Room:
    cores = float(len(os.sched_getaffinity(0)))
    quota = cgroups.cores()
    left = cgroups.memory_left_bytes()
    memory = _memory_available_bytes()
    return Room(
        cores=cores if quota is None else min(cores, quota),
        memory_bytes=memory if left is None else min(memory, left),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=_processes_left(),
    )


def room_checks(room: Room, size: Size) -> Iterator[Check]:
    yield _cores(room, size)
    yield _memory(room, size)
    yield _limits(room, size)


def _cores(room: Room, size: Size) -> Check:
    have = f"{room.cores:.3g} for {size.ranks} ranks"
    if room.cores >= size.ranks:
        return Check("cores", OK, have)
    return Check(
        "cores",
        WARNING,
        f"{have}: ranks take turns. The catalog's jobs are paced and stay true; computing that is "
        "not paced (pace=null) is slower and varies",
        (f"CLUSTER= with up to {max(1, int(room.cores))} ranks, for computing that is not paced",),
    )


def _memory(room: Room, size: Size) -> Check:
    lab = f"{size.nodes} nodes with {size.ranks} ranks take about {size_words(size.memory_bytes)}"
    words = f"{size_words(room.memory_bytes)} free; {lab}"
    fix = ("CLUSTER= with fewer nodes or ranks", "end other programs; what takes most: top -o %MEM")
    if room.memory_bytes < size.memory_bytes:
        return Check("memory", FAULT, words, fix)
    if room.memory_bytes < COMFORT * size.memory_bytes:
        return Check("memory", WARNING, f"{words}: larger models may not fit", fix)
    return Check("memory", OK, words)


def _limits(room: Room, size: Size) -> Check:
    files = FILES + FILES_A_RANK * size.ranks
    threads = THREADS_A_NODE * size.nodes + THREADS_A_RANK * size.ranks
    if room.open_files < files:
        seen = f"{room.open_files} open files a process; a rank of this lab needs {files}"
        return Check("limits", FAULT, seen, (f"ulimit -n {max(1024, files)}     in this shell",))
    if room.processes is not None and room.processes < threads:
        seen = f"{room.processes} more processes and threads; this lab needs about {threads}"
        more = f"ulimit -u {10_000 + threads}     in this shell, where nothing above it forbids it"
        return Check("limits", FAULT, seen, (more, "in a container: --pids-limit=-1"))
    may = "any number of" if room.processes is None else f"{room.processes:,} more"
    seen = f"{room.open_files:,} open files a process, {may} processes and threads"
    return Check("limits", OK, seen)


def shared_memory_check(
    lab_bytes: int | None, place: str = "/dev/shm", needed_bytes: int = SHARED_BYTES
) -> Check:
    """`lab_bytes`: the size of a lab's own /dev/shm as it was tried; None where it was not."""
    own = "" if lab_bytes is None else f"; a lab has its own, {size_words(lab_bytes)}"
    try:
        status = os.statvfs(place)
    except OSError as exc:
        fix = as_root(f"mkdir -m 1777 {place}")
        return Check("shm", FAULT, f"{place}: {exc.strerror}", (fix,))
    size_bytes = status.f_frsize * status.f_blocks
    if lab_bytes is not None and lab_bytes < needed_bytes:
        seen = f"a lab's own {place} is only {size_words(lab_bytes)}"
        return Check("shm", FAULT, seen, ("more memory: it is half of this machine's",))
    if size_bytes < needed_bytes:
        seen = f"{place} has only {size_words(size_bytes)}{own}"
        remount = as_root(f"mount -o remount,size=1g {place}")
        return Check("shm", WARNING, seen, (remount, "in a container: start it with --shm-size=1g"))
    return Check("shm", OK, f"{place} has {size_words(size_bytes)}{own}")


def disk_check(folder: Path) -> Check:
    """Room for runs, in `folder` or where it will be made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    status = os.statvfs(there)
    free_bytes = status.f_frsize * status.f_bavail
    seen = f"{size_words(free_bytes)} free in {folder}; a run takes about 1 MB"
    fix = (
        "make runs-clean KEEP=10",
        f"du -xh {quote(str(there))} | sort -h | tail     what is large",
    )
    if status.f_files and status.f_favail < RUN_FILES:
        return Check("disk", FAULT, f"{folder} can take only {status.f_favail} more files", fix)
    if free_bytes < RUN_BYTES:
        return Check("disk", FAULT, seen, fix)
    if free_bytes < COMFORTABLE_RUN_BYTES:
        return Check("disk", WARNING, seen, fix)
    return Check("disk", OK, seen)


def _memory_available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _processes_left() -> int | None:
    """The kernel counts threads, those of all of a user's sessions; root is not limited."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    group = cgroups.processes_left()
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return group
    left = limit - _own_threads()
    return left if group is None else min(left, group)


def _own_threads() -> int:
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry.stat().st_uid == os.geteuid():
                total += len(list((entry / "task").iterdir()))
    return total


def size_words(num_bytes: float) -> str:
    """`64 MB`, `1.2 GB`, `25 GB`: what people compare, not what they add up."""
    if num_bytes < 1e9:
        return f"{num_bytes / 1e6:.0f} MB"
    return f"{num_bytes / 1e9:.2g} GB" if num_bytes < 10e9 else f"{num_bytes / 1e9:,.0f} GB"
