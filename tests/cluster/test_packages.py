"""What is installed with which command, on which distribution."""

import os
from pathlib import Path

import pytest

from cluster import packages
from cluster.holding import tool
from cluster.packages import PACKAGES, install_commands, load_module

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
UBUNTU = 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n'
MINT = 'ID=linuxmint\nID_LIKE="ubuntu debian"\n'
FEDORA = 'NAME="Fedora Linux"\nID=fedora\n'
ALMA = 'ID="almalinux"\nID_LIKE="rhel centos fedora"\n'
ARCH = "ID=arch\n"
KERNEL = "6.8.0-41-generic"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "KERNEL_MODULES", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("os_release", "expected"),
    [
        (DEBIAN, ("sudo apt-get install iproute2 util-linux",)),
        (UBUNTU, ("sudo apt-get install iproute2 util-linux",)),
        (MINT, ("sudo apt-get install iproute2 util-linux",)),
        (FEDORA, ("sudo dnf install iproute iproute-tc util-linux",)),
        (ALMA, ("sudo dnf install iproute iproute-tc util-linux",)),
        (
            ARCH,
            (
                "sudo apt-get install iproute2 util-linux     on Debian or Ubuntu",
                "sudo dnf install iproute iproute-tc util-linux     on Fedora",
            ),
        ),
    ],
)
def test_the_command_is_that_of_this_distribution(os_release: str, expected: object) -> None:
    assert install_commands(["ip", "tc", "unshare"], os_release) == expected


def test_root_needs_no_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert install_commands(["tc"], DEBIAN) == ("apt-get install iproute2",)
    assert install_commands(["tc"], FEDORA) == ("dnf install iproute-tc",)


@pytest.mark.parametrize("name", sorted(set(PACKAGES) - {"venv", "docker"}))
def test_every_command_that_a_lab_calls_has_a_package(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.holding.search_path", lambda: "/nowhere")
    with pytest.raises(Exception, match=f"'{name}' is not installed") as caught:
        tool(name)
    assert PACKAGES[name].debian in str(caught.value) or PACKAGES[name].fedora in str(caught.value)


def test_a_module_that_lies_there_is_loaded(modules: Path) -> None:
    (modules / KERNEL).mkdir()
    (modules / KERNEL / "modules.dep").write_text("kernel/net/sched/sch_netem.ko.zst:\n")
    assert load_module("sch_netem", KERNEL, UBUNTU) == ("sudo modprobe sch_netem",)


@pytest.mark.parametrize(
    ("os_release", "expected"),
    [
        (
            UBUNTU,
            ("sudo apt-get install linux-modules-extra-$(uname -r) && sudo modprobe sch_netem",),
        ),
        (
            DEBIAN,
            (
                "sudo apt-get install linux-image-$(dpkg --print-architecture)"
                "     then start that kernel",
            ),
        ),
        (FEDORA, ("sudo dnf install kernel-modules-extra && sudo modprobe sch_netem",)),
        (
            ARCH,
            (
                "sudo apt-get install linux-modules-extra-$(uname -r) && sudo modprobe sch_netem"
                "     on Debian or Ubuntu",
                "sudo dnf install kernel-modules-extra && sudo modprobe sch_netem     on Fedora",
            ),
        ),
    ],
)
def test_a_module_that_is_not_there_is_installed_first(
    modules: Path, os_release: str, expected: object
) -> None:
    (modules / KERNEL).mkdir()
    (modules / KERNEL / "modules.dep").write_text("kernel/net/sched/sch_netem_other.ko:\n")
    assert load_module("sch_netem", KERNEL, os_release) == expected


def test_a_kernel_without_modules_is_no_matter_of_packages() -> None:
    outside, other = load_module("sch_netem", KERNEL, UBUNTU)
    assert outside.startswith("sudo modprobe sch_netem     outside")
    assert KERNEL in other
