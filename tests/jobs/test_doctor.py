"""What `ddplab doctor` asks, prints and ends with; this machine itself is stood in for."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import cluster.backends
import cluster.doctor.rate
import jobs.doctor
from cluster.backends import Chosen
from cluster.compose.backend import COMPOSE
from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, WARNING, Check
from cluster.doctor.host import Asked, Port
from cluster.doctor.room import Size
from cluster.netns import NETNS
from jobs.doctor import torch_check
from jobs.report.doctor_screen import check_lines, closing_lines
from jobs.server.ports import ADDRESS, PORTS
from tests.jobs.command import call, valid

pytestmark = pytest.mark.usefixtures("own_folder")
WIDTHS = (80, 100, 120)
HOST = (
    Check("commands", OK, "ip tc"),
    Check("namespaces", OK, "yes"),
    Check("netem", NOT_HERE, "only needed for delay", ("sudo modprobe sch_netem     outside",)),
    Check("cores", WARNING, "2 for 4 ranks"),
)
NO_TC = Check("commands", FAULT, "no tc on the search path", ("sudo apt-get install iproute2",))


class Machine:
    """What the host checks say, and what they were asked."""

    def __init__(self) -> None:
        self.checks: Sequence[Check] = HOST
        self.asked: list[Asked] = []
        self.measured: list[str] = []
        self.chosen = Chosen(NETNS, "there is no docker command")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    it = Machine()

    def host(asked: Asked, port: Port) -> Iterator[Check]:
        assert (port.address, port.ports) == (ADDRESS, PORTS)
        it.asked.append(asked)
        yield from it.checks

    def rate(_spec: object, privilege: str) -> Check:
        it.measured.append(privilege)
        return Check("rate", OK, "3gbit")

    monkeypatch.setattr(jobs.doctor, "host_checks", host)
    monkeypatch.setattr(cluster.backends, "choose_backend", lambda _auto: it.chosen)
    monkeypatch.setattr(jobs.doctor, "torch_check", lambda _python: Check("torch", OK, "2.13"))
    monkeypatch.setattr(cluster.doctor.rate, "rate_check", rate)
    return it


def test_json_holds_every_check_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "doctor", "--json")
    assert code == 0
    document = valid(out, "doctor")
    assert document["ok"] is True
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert states == {
        "python": "ok",
        "torch": "ok",
        "commands": "ok",
        "namespaces": "ok",
        "netem": "not_here",
        "cores": "warning",
        "backend": "ok",
        "rate": "ok",
    }
    assert document["checks"][4]["fix"] == "sudo modprobe sch_netem outside"
    assert document["checks"][5]["fix"] is None


def test_a_fault_is_exit_code_1_and_no_lab_is_tried(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    machine.checks = (NO_TC, *HOST[1:])
    code, out, _ = call(capsys, "doctor", "--json")
    assert code == 1
    document = valid(out, "doctor")
    assert document["ok"] is False
    assert document["checks"][-1]["state"] == SKIPPED
    assert machine.measured == []
    code, out, err = call(capsys, "doctor")
    assert (code, err) == (1, "")
    assert "  FAULT      commands     no tc on the search path\n" in out
    assert "             fix  sudo apt-get install iproute2\n" in out
    assert "1 fault: commands. 1 warning." in out
    assert out.endswith("make doctor\n")


def test_what_auto_takes_is_told_with_its_reason(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    out = call(capsys, "doctor")[1]
    assert "backend      BACKEND=auto takes netns: there is no docker command\n" in out
    machine.chosen = Chosen(COMPOSE, "Docker 28 and Compose 2.26 answer")
    out = call(capsys, "doctor")[1]
    assert "backend      BACKEND=auto takes compose: Docker 28 and Compose 2.26 answer\n" in out


def test_what_only_another_backend_needs_is_no_fault(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    machine.checks = (NO_TC, Check("disk", OK, "25 GB free"))
    machine.chosen = Chosen(COMPOSE, "Docker 28 and Compose 2.26 answer")
    code, out, _ = call(capsys, "doctor")
    assert code == 0
    assert "not here   commands     only needed for labs of network namespaces; no tc on" in out
    assert machine.measured == []  # it would be measured in namespaces
    machine.checks = (
        Check("container", NOT_HERE, "no ifb: only needed for labs in containers; x"),
    )
    code, out, _ = call(capsys, "doctor")
    assert code == 1
    assert "  FAULT      container    no ifb; x\n" in out


def test_a_fault_in_room_still_lets_links_be_measured(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    machine.checks = (*HOST, Check("disk", FAULT, "full"))
    assert call(capsys, "doctor", "--privilege", "sudo")[0] == 1
    assert machine.measured == ["sudo"]
    assert machine.asked[0].privilege == "sudo"


def test_quick_measures_nothing(capsys: pytest.CaptureFixture[str], machine: Machine) -> None:
    code, out, _ = call(capsys, "doctor", "--quick")
    assert code == 0
    assert machine.measured == []
    assert "  not tried  rate         QUICK=1 leaves out what links carry\n" in out
    assert "Nothing is missing that a lab needs. 1 warning.\n" in out


def test_the_cluster_that_is_asked_about_is_the_one_that_counts(
    capsys: pytest.CaptureFixture[str], machine: Machine, tmp_path: Path
) -> None:
    assert (
        "make cluster-up CLUSTER=4x2 RATE=1gbit\n"
        in call(capsys, "doctor", "--cluster", "4x2", "--rate", "1gbit")[1]
    )
    assert (machine.asked[0].size, machine.asked[0].netem_for) == (Size(4, 2), "")
    far = tmp_path / "far.yaml"
    far.write_text(
        "name: far\nnodes: 3\nranks_per_node: 1\n"
        "links:\n  inter_node: {rate: 100mbit, delay: 5ms}\n"
    )
    call(capsys, "doctor", "--cluster", str(far))
    assert (machine.asked[1].size, machine.asked[1].netem_for) == (Size(3, 1), f"CLUSTER={far}")
    code, out, _ = call(capsys, "doctor", "--cluster", "2x3", "--json")
    assert code == 1
    assert "2x2" in str(valid(out, "error")["error"]["fix"])


def test_what_the_front_door_saw_comes_first_and_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [Check("python", OK, "3.11.2"), Check("venv", FAULT, "no ensurepip", ("a", "b"))]
    code, out, _ = call(capsys, "doctor", "--json", f"--before={json.dumps(before)}")
    document = valid(out, "doctor")
    assert code == 1
    assert document["checks"][0]["seen"] == "3.11.2"
    assert document["checks"][1]["fix"] == "a or: b"
    assert [check["name"] for check in document["checks"]].count("python") == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_fit_and_commands_stay_whole(width: int) -> None:
    long = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0     until the next reboot"
    two = "sudo apt-get install python3.11 python3.11-venv && make setup PYTHON=python3.11"
    check = Check("environment", FAULT, "seen " * 40, (long, two, "short"))
    lines = [text for text, _ in check_lines(check, width)]
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("  FAULT      environment  seen seen")
    joined = "\n".join(lines)
    assert "fix  sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in joined
    assert "or   sudo apt-get install python3.11 python3.11-venv &&" in joined
    assert joined.endswith("or   short")
    assert ("(until the next reboot)" in joined) == (width < 120)
    assert {style for _, style in check_lines(check, width)} == {"bold red"}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_end_names_every_fault_and_fits(width: int) -> None:
    checks = [Check(f"check{number}", FAULT, "") for number in range(20)]
    lines = [text for text, _ in closing_lines(checks, "", width)]
    assert max(map(len, lines)) <= width
    assert " ".join(lines).count("check1") == 11
    assert "20 faults: " in lines[1]


def test_torch_is_imported_as_a_rank_would(tmp_path: Path) -> None:
    def python(script: str) -> str:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return str(program)

    check = torch_check(python("echo 2.13.0+cpu gloo"))
    assert (check.state, check.seen) == (OK, "PyTorch 2.13.0+cpu, with gloo")
    check = torch_check(python("echo 2.13.0 no gloo"))
    assert check.state == FAULT and "without gloo" in check.seen
    check = torch_check(python("echo trace >&2; echo 'ImportError: libgomp.so.1' >&2; exit 1"))
    assert check.state == FAULT and check.seen.endswith("ImportError: libgomp.so.1")
    assert check.fix == ("rm -r .venv .venvs && make setup",)
    assert "ended with -4" in torch_check(python("kill -ILL $$")).seen
