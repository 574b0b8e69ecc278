"""Programs in a node that somebody stopped: they keep neither their client's end nor a lab."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.lab import bring_up, list_labs, take_down
from cluster.nodes import Making
from cluster.spec import load_cluster
from cluster.state import LabDirectory
from tests.live.host import eventually, namespace_of, processes_in

pytestmark = pytest.mark.netns
SPEC = load_cluster("2x2")
NETNS = Making("netns")
TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    for name in list_labs():
        take_down(name)


def holder_pid() -> int:
    state = LabDirectory.of("default").read()
    assert state is not None
    pid: int = state["nodes"]["holder"]["pid"]
    return pid


def programs_named(namespace: str, name: bytes) -> list[int]:
    """Those that have begun, and are no longer what starts them in the node."""
    found = []
    for pid in processes_in(namespace):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] == name:
                found.append(pid)
    return found


def test_a_program_that_was_stopped_ends_with_its_client() -> None:
    lab = bring_up(SPEC, making=NETNS, probe=False)
    namespace = namespace_of(holder_pid(), "pid")
    process = lab.nodes.exec(lab.nodes.list()[0], ["cat"])
    assert eventually(lambda: bool(programs_named(namespace, b"cat")))
    os.kill(programs_named(namespace, b"cat")[0], signal.SIGSTOP)
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    process.kill()
    process.wait(TIMEOUT_S)
    assert eventually(lambda: not programs_named(namespace, b"cat"))


def test_a_program_that_is_stopped_does_not_keep_the_lab() -> None:
    """nsenter stops with it, and then does not collect it when it is dead."""
    lab = bring_up(SPEC, making=NETNS, probe=False)
    holder = holder_pid()
    namespace = namespace_of(holder, "pid")
    process = lab.nodes.exec(lab.nodes.list()[0], ["sleep", "600"])
    assert eventually(lambda: bool(programs_named(namespace, b"sleep")))
    os.kill(programs_named(namespace, b"sleep")[0], signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    assert eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    take_down()
    assert not Path(f"/proc/{holder}").exists()
    process.wait(TIMEOUT_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
