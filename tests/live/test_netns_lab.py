"""Labs of network namespaces: what they leave alone, what they leave behind, how they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import LabExists, MissingQdisc, NoLab
from cluster.lab import Lab, bring_up, list_labs, open_lab, take_down
from cluster.netns import NetnsNodes
from cluster.nodes import Making
from cluster.spec import ClusterSpec, load_cluster
from cluster.state import LabDirectory
from tests.live.host import (
    eventually,
    host_network,
    namespace_of,
    processes_in,
    python_environment,
)

pytestmark = pytest.mark.netns
SPEC = load_cluster("2x2")
NETNS = Making("netns")
TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Labs of a test lie in its own folder, and are taken down also when it fails."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    for name in list_labs():
        take_down(name)


def saved_holder(name: str = "default") -> dict[str, int]:
    state = LabDirectory.of(name).read()
    assert state is not None
    holder: dict[str, int] = state["nodes"]["holder"]
    return holder


def output(lab: Lab, number: int, *argv: str) -> str:
    process = lab.nodes.exec(lab.nodes.list()[number], argv)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.close()
    text = process.stdout.read().decode().strip()
    errors = process.stderr.read().decode()
    assert process.wait(TIMEOUT_S) == 0, errors
    process.stdout.close()
    process.stderr.close()
    return text


def test_the_network_of_this_machine_is_the_same_before_during_and_after() -> None:
    before = host_network()
    lab = bring_up(SPEC, making=NETNS, probe=False)
    assert host_network() == before
    lab.nodes.shape(lab.nodes.list()[0], load_cluster("2x2", "50mbit").links)
    output(lab, 0, "true")
    assert host_network() == before
    take_down()
    assert host_network() == before


@pytest.mark.parametrize("victim", ["pid", "parent"])
def test_kill_of_the_holder_removes_everything(victim: str) -> None:
    before = host_network()
    lab = bring_up(SPEC, making=NETNS, probe=False)
    holder = saved_holder()
    processes = [lab.nodes.exec(node, ["sleep", "600"]) for node in lab.nodes.list()]
    namespace = namespace_of(holder["pid"], "pid")
    assert eventually(lambda: len(processes_in(namespace)) == 3)
    os.kill(holder[victim], signal.SIGKILL)
    assert eventually(lambda: not processes_in(namespace))
    for process in processes:
        assert process.wait(TIMEOUT_S) != 0
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    with pytest.raises(NoLab):
        open_lab()
    assert list_labs() == ()
    assert host_network() == before
    assert not bring_up(SPEC, making=NETNS, probe=False).already_up


def test_a_process_id_used_again_is_not_trusted() -> None:
    bring_up(SPEC, making=NETNS, probe=False)
    directory = LabDirectory.of("default")
    state = directory.read()
    assert state is not None
    holder = dict(state["nodes"]["holder"])
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            for key in ("pid", "parent"):
                state["nodes"]["holder"][key] = stranger.pid
            directory.write(state)
            with pytest.raises(NoLab):
                take_down()
            assert stranger.poll() is None
        finally:
            stranger.kill()
    assert eventually(lambda: not Path(f"/proc/{holder['pid']}").exists())


def test_the_holder_ends_when_its_state_is_removed() -> None:
    """As when a session's runtime directory goes away: no lab that nobody can find."""
    bring_up(SPEC, making=NETNS, probe=False)
    pid = saved_holder()["pid"]
    LabDirectory.of("default").clear()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


UP = """
import sys
from cluster.lab import bring_up
from cluster.nodes import Making
from cluster.spec import load_cluster

def on_event(event):
    print(event.step, "began" if event.seconds is None else "ended", flush=True)

bring_up(load_cluster("2x2"), "cut", Making("netns"), True, on_event)
"""


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("start", signal.SIGINT),
        ("start", signal.SIGKILL),
        ("limit", signal.SIGINT),
        ("limit", signal.SIGTERM),
        ("measure", signal.SIGINT),
        ("measure", signal.SIGKILL),
    ],
)
def test_an_end_while_coming_up_leaves_nothing(
    step: str, number: signal.Signals, runtime: Path
) -> None:
    before = host_network()
    with subprocess.Popen(
        [sys.executable, "-c", UP],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        reached = any(line.split() == [step, "began"] for line in process.stdout)
        assert reached
        process.send_signal(number)
        process.wait(TIMEOUT_S)
        assert process.returncode != 0
    assert list_labs() == ()
    assert eventually(lambda: not holders_in(runtime))
    assert host_network() == before
    assert not bring_up(SPEC, "cut", NETNS, probe=False).already_up


def holders_in(runtime: Path) -> list[int]:
    """Holder processes of labs in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"holder.py" in line and str(runtime).encode() in line:
                found.append(int(entry.name))
    return found


def test_the_lab_outlives_the_command_that_made_it(runtime: Path) -> None:
    script = UP.replace("probe=True", "probe=False")
    subprocess.run(
        [sys.executable, "-c", script],
        env=python_environment(),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=TIMEOUT_S,
        start_new_session=True,
    )
    assert output(open_lab("cut"), 1, "hostname") != ""
    assert len(holders_in(runtime)) >= 1


def test_two_labs_side_by_side() -> None:
    """The same names and addresses, and neither sees the other."""
    one, two = bring_up(SPEC, "a", NETNS, probe=False), bring_up(SPEC, "ab", NETNS, probe=False)
    spaces = {output(lab, k, "readlink", "/proc/self/ns/net") for lab in (one, two) for k in (0, 1)}
    assert len(spaces) == 4
    assert one.nodes.list() == two.nodes.list()
    take_down("a")
    assert output(open_lab("ab"), 0, "echo", "here") == "here"
    with pytest.raises(NoLab):
        open_lab("a")


def test_the_same_again_and_another() -> None:
    bring_up(SPEC, making=NETNS, probe=False)
    pid = saved_holder()["pid"]
    assert bring_up(SPEC, making=NETNS, probe=False).already_up
    with pytest.raises(LabExists):
        bring_up(load_cluster("4x1"), making=NETNS, probe=False)
    assert saved_holder()["pid"] == pid
    assert output(open_lab(), 0, "echo", "here") == "here"


def test_run_and_shared_memory_are_the_labs_own() -> None:
    lab = bring_up(SPEC, making=NETNS, probe=False)
    for folder in ("/run", "/dev/shm", "/run/tmp"):
        name = f"{folder}/ddplab-mark-{os.getpid()}"
        output(lab, 0, "touch", name)
        assert not Path(name).exists()
    assert output(lab, 0, "sh", "-c", "echo $TMPDIR") == "/run/tmp"


def test_ctrl_c_does_not_reach_programs_in_nodes() -> None:
    lab = bring_up(SPEC, making=NETNS, probe=False)
    process = lab.nodes.exec(lab.nodes.list()[0], ["cat"])
    assert os.getpgid(process.pid) != os.getpgid(0)
    assert os.getsid(process.pid) != os.getsid(0)
    process.kill()
    process.wait(TIMEOUT_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def test_a_delay_is_applied_or_refused_by_name() -> None:
    """Where the kernel has sch_netem it must be read back; where not, nothing may be left."""
    data = SPEC.to_dict()
    data["links"]["inter_node"]["delay"] = "10ms"
    before = host_network()
    try:
        lab = bring_up(ClusterSpec.from_dict(data), making=NETNS, probe=False)
    except MissingQdisc as exc:
        assert "sch_netem" in exc.message
        assert list_labs() == ()
        assert host_network() == before
    else:
        assert "delay 10ms" in output(lab, 0, "tc", "qdisc", "show", "dev", "fab0")


def test_a_named_namespace_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """The lab's `node0` is not this machine's `node0`; tried inside a namespace of the test's."""
    outer = NetnsNodes(tmp_path, "none")
    (tmp_path / "inner").mkdir()
    try:
        outer.up(load_cluster("4x1"))
        script = (
            "import sys; from cluster.lab import *; from cluster.nodes import Making\n"
            "from cluster.spec import load_cluster\n"
            "bring_up(load_cluster('2x2'), 'in', Making('netns'), False); take_down('in')"
        )
        node = outer.list()[0]
        assert holder_runs(outer, "ip", "netns", "list").count("node") == 4
        process = outer.exec(
            node, [sys.executable, "-c", script], env={"XDG_RUNTIME_DIR": str(tmp_path / "inner")}
        )
        assert process.stdin and process.stdout and process.stderr
        process.stdin.close()
        errors = process.stderr.read().decode()
        assert process.wait(TIMEOUT_S) == 0, errors
        process.stdout.close()
        process.stderr.close()
        assert holder_runs(outer, "ip", "netns", "list").count("node") == 4
    finally:
        outer.down()


def holder_runs(nodes: NetnsNodes, *argv: str) -> str:
    process = nodes.exec(nodes.list()[0], argv)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.close()
    text = process.stdout.read().decode()
    process.wait(TIMEOUT_S)
    process.stdout.close()
    process.stderr.close()
    return text
