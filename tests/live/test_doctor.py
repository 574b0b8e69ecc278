"""`doctor` names each thing that is taken away from the machine, and what brings it back."""

import json
import re
from pathlib import Path

import pytest

from cluster import carried
from cluster.carried import carried_here
from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, WARNING
from cluster.doctor.network import FEATURES
from cluster.doctor.trial import STEPS, harmless
from cluster.nodes import Shapeable
from cluster.spec import ClusterSpec, load_cluster
from tests.live.host import host_network
from tests.live.lab import TestLab
from tests.live.lacking import Machine, pretending, without
from tests.live.ordinary import ordinary_user

pytestmark = pytest.mark.netns
UNKNOWN_QDISC = "Error: Specified qdisc kind is unknown."
UNKNOWN_DEVICE = "Error: Unknown device type."
NEEDED = ("commands", "namespaces", "veth", "bridge", "tbf", "congestion", "memory", "limits")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for folder in ("runs", "state"):
        (tmp_path / folder).mkdir(mode=0o700)
    return Machine(tmp_path)


def test_a_machine_that_lacks_nothing_has_no_fault_and_is_left_as_it_was(machine: Machine) -> None:
    before = host_network()
    found = machine.lacks("ip link set lo up")
    assert [check for check in found.values() if check.state == FAULT] == []
    assert {found[name].state for name in NEEDED} == {OK}
    assert host_network() == before


@pytest.mark.parametrize(
    ("command", "package", "untried"),
    [
        ("tc", "iproute", "tbf"),
        ("ip", "iproute", "bridge"),
        ("unshare", "util-linux", "namespaces"),
        ("nsenter", "util-linux", "namespaces"),
        ("setpriv", "util-linux", "namespaces"),
    ],
)
def test_a_command_that_is_gone(machine: Machine, command: str, package: str, untried: str) -> None:
    found = machine.lacks(without([command]))
    assert found["commands"].state == FAULT
    assert found["commands"].seen == f"no {command} on the search path"
    assert package in found["commands"].fix[0]
    assert found[untried].state == SKIPPED
    assert found[untried].seen.endswith(f"it needs {command}")
    assert found["memory"].state == OK


def test_no_more_network_namespaces(machine: Machine) -> None:
    """The setting of a user namespace of the test's own, not that of this machine."""
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$0" "$@"'
    found = machine.lacks("", under=["unshare", "--user", "--map-root-user", "sh", "-c", forbid])
    assert found["namespaces"].state == FAULT
    assert "user.max_net_namespaces = 0" in found["namespaces"].seen
    assert "No space left on device" in found["namespaces"].seen
    assert found["namespaces"].fix[0].startswith("sysctl -w user.max_net_namespaces=")
    assert {found[name].state for name in FEATURES} == {SKIPPED}


ORDINARY = """
import json, os, subprocess, sys
ask = '''
import json
from cluster.doctor.network import missing_commands, network_checks
from cluster.doctor.trial import try_network
print(json.dumps([list(check) for check in network_checks(try_network(), missing_commands())]))
'''
taken = "echo 0 > /proc/sys/user/max_user_namespaces"
drop = "exec setpriv --ambient-caps=-all --inh-caps=-all"
inside = ["sh", "-c", f'{taken} && {drop} "$0" -c "$1"', sys.executable, ask]
spaces = ["unshare", "--user", "--map-current-user", "--keep-caps"]
done = subprocess.run([*spaces, *inside], capture_output=True, text=True)
print(done.stdout, done.stderr)
"""


def test_an_ordinary_user_without_user_namespaces() -> None:
    with ordinary_user() as user:
        spaces, *rest = json.loads(user.run(ORDINARY).splitlines()[0])
    assert spaces[:2] == ["namespaces", FAULT]
    assert "user.max_user_namespaces = 0" in spaces[2]
    assert spaces[3][0].startswith("sudo sysctl -w user.max_user_namespaces=")
    assert {check[1] for check in rest} == {SKIPPED}


@pytest.mark.parametrize(
    ("name", "command", "word", "says", "state"),
    [
        ("veth", "ip", "veth", UNKNOWN_DEVICE, FAULT),
        ("bridge", "ip", "bridge", UNKNOWN_DEVICE, FAULT),
        ("tbf", "tc", "tbf", UNKNOWN_QDISC, FAULT),
        ("congestion", "ip", "congctl", "Error: Unknown tcp congestion algorithm.", FAULT),
        ("netem", "tc", "netem", UNKNOWN_QDISC, NOT_HERE),
        ("ifb", "ip", "ifb", UNKNOWN_DEVICE, NOT_HERE),
        ("ingress", "tc", "ingress", UNKNOWN_QDISC, NOT_HERE),
        ("mirred", "tc", "mirred", "Error: Failed to load TC action module.", NOT_HERE),
        ("u32", "tc", "flowid", "Error: TC classifier not found.", NOT_HERE),
    ],
)
def test_a_kernel_that_cannot_do_one_thing(
    machine: Machine, tmp_path: Path, name: str, command: str, word: str, says: str, state: str
) -> None:
    found = machine.lacks("", path=pretending(tmp_path / "bin", command, word, says))
    assert found["namespaces"].state == OK
    if name in harmless(STEPS)[1]:
        return  # not tried here: what is known of it without is tested elsewhere
    assert found[name].state == state
    assert says in found[name].seen
    assert FEATURES[name].module in " ".join(found[name].fix)


def test_delay_that_is_asked_for_is_a_fault_where_it_cannot_be(
    machine: Machine, tmp_path: Path
) -> None:
    path = pretending(tmp_path / "bin", "tc", "netem", UNKNOWN_QDISC)
    check = machine.lacks("", netem_for="CLUSTER=far.yaml", path=path)["netem"]
    assert check.state == FAULT
    assert check.seen.startswith("CLUSTER=far.yaml needs it")


@pytest.mark.parametrize(
    ("taken", "name", "state", "seen", "fix"),
    [
        (
            "mount -t tmpfs -o size=64m tmpfs /dev/shm",
            *("shm", WARNING, r"/dev/shm has only 67 MB; a lab has its own, ", "remount,size="),
        ),
        (
            "mount -t tmpfs -o size=4m tmpfs runs",
            *("disk", FAULT, r"4 MB free in ", "make runs-clean"),
        ),
        (
            "mount -t tmpfs -o nr_inodes=40 tmpfs runs",
            *("disk", FAULT, r"can take only \d\d more files", "make runs-clean"),
        ),
        (
            "mount -t tmpfs -o ro tmpfs runs",
            *("files", FAULT, r"runs is on a file system that is mounted read-only", "clone it"),
        ),
        (
            "sed 's/^MemAvailable:.*/MemAvailable: 800000 kB/' /proc/meminfo > state/meminfo\n"
            "mount --bind state/meminfo /proc/meminfo",
            *("memory", FAULT, r"819 MB free; 2 nodes with 4 ranks take about 920 MB", "fewer"),
        ),
        ("ulimit -n 39", "limits", FAULT, "39 open files a process; .* needs 40", "ulimit -n 1024"),
        (
            "mkdir -m 700 -p state/ddplab && chmod 777 state/ddplab",
            *("state", FAULT, r"cannot be trusted: others may write to it", "ls -ld"),
        ),
        (
            "true",
            *("ports", WARNING, "9440 cannot be used: Network is unreachable", "ip link set lo up"),
        ),
    ],
)
def test_something_that_is_small_closed_or_down(
    machine: Machine, taken: str, name: str, state: str, seen: str, fix: str
) -> None:
    check = machine.lacks(taken)[name]
    assert check.state == state
    assert re.search(seen, check.seen), check.seen
    assert fix in " ".join(check.fix)


def test_a_taken_port_names_its_holder(machine: Machine) -> None:
    listener = "import socket, time; s = socket.create_server(('127.0.0.1', 9440)); time.sleep(60)"
    started = f'python3 -c "{listener}" & '
    ready = "until grep -q '0100007F:24E0 ' /proc/net/tcp; do sleep 0.02; done"
    check = machine.lacks(
        f"ip link set lo up\n{started}\nholder=$!\n{ready}\necho $holder > state/holder"
    )["ports"]
    holder = (machine.home / "state" / "holder").read_text().strip()
    assert check.state == WARNING
    assert "127.0.0.1:9440 is taken by python3 -c" in check.seen
    assert f"(process {holder} of " in check.seen
    assert "the exporter takes 9441" in check.seen
    assert check.fix[0].startswith(f"kill {holder}")


def test_without_docker_nothing_else_is_missed(machine: Machine) -> None:
    check = machine.lacks(without(["docker"]) + "unset DOCKER_HOST", path="/usr/bin:/bin")["docker"]
    assert (check.state, check.seen) == (
        NOT_HERE,
        "no docker: only needed for labs in containers",
    )
    assert "docker" in check.fix[0] or "moby" in check.fix[0]


def test_a_run_that_belongs_to_somebody_else(machine: Machine) -> None:
    """Given away, or, where that is not allowed, replaced by a folder that nobody here owns."""
    given = "mkdir runs/one && { chown 54321 runs/one || mount --bind /usr/share/doc runs/one; }"
    check = machine.lacks(f"{given} 2>/dev/null")["files"]
    assert check.state == FAULT
    assert re.fullmatch(r"not yours: runs/one \(.*'s\)", check.seen)
    assert check.fix == (f"chown -R root: {machine.home.resolve()}/runs/one",)


def test_the_whole_command_with_its_torch(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    done = TestLab("none", tmp_path).command("doctor", "--quick", "--json")
    document = json.loads(done.stdout)
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert document["ok"] is (done.returncode == 0) is ("fault" not in states.values())
    assert states["torch"] == states["namespaces"] == states["tbf"] == "ok"
    assert states["rate"] == "skipped"


def test_a_lab_that_is_made_to_measure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it measures is tried in test_probe, on a lab that asked for too much."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before, seen = host_network(), []

    def measured(nodes: Shapeable, spec: ClusterSpec) -> int:
        seen.extend([len(nodes.list()), spec.nodes, list((tmp_path / "ddplab").iterdir())])
        return 7

    monkeypatch.setattr(carried, "carried_rate", measured)
    assert carried_here(load_cluster("4x1")) == 7
    assert seen == [4, 4, []]
    assert host_network() == before
