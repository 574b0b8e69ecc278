"""Which package brings what, and the command that installs it on this machine.

Standard library only, and readable by any Python 3: the front door asks it too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

OS_RELEASE = "/etc/os-release"
KERNEL_MODULES = Path("/lib/modules")


class Package(NamedTuple):
    """One thing to install, by its name in either family of distributions."""

    debian: str
    fedora: str


PACKAGES = {
    "ip": Package("iproute2", "iproute"),
    "tc": Package("iproute2", "iproute-tc"),
    "unshare": Package("util-linux", "util-linux"),
    "nsenter": Package("util-linux", "util-linux"),
    "setpriv": Package("util-linux", "util-linux"),
    "mount": Package("mount", "util-linux"),
    "sudo": Package("sudo", "sudo"),
    "venv": Package("python3-venv", "python3"),
    "docker": Package("docker.io", "moby-engine"),
    "mmdebstrap": Package("mmdebstrap", "mmdebstrap"),
}
_MODULES = Package("linux-modules-extra-$(uname -r)", "kernel-modules-extra")
_COMMANDS = {"debian": "apt", "ubuntu": "apt", "fedora": "dnf", "rhel": "dnf", "centos": "dnf"}


def install(packages: Iterable[Package], os_release: str | None = None) -> tuple[str, ...]:
    """The command that installs them here; one for either family where this is neither.

    `os_release` is the text of /etc/os-release, read from there where it is not given.
    """
    wanted = list(packages)
    apt = as_root("apt-get install " + " ".join(dict.fromkeys(one.debian for one in wanted)))
    dnf = as_root("dnf install " + " ".join(dict.fromkeys(one.fedora for one in wanted)))
    words = _distribution(_read(OS_RELEASE) if os_release is None else os_release)
    return _of_family(words, apt, dnf)


def install_commands(names: Iterable[str], os_release: str | None = None) -> tuple[str, ...]:
    """As `install`, for commands by their names in PACKAGES."""
    return install([PACKAGES[name] for name in names], os_release)


def has_module(name: str, kernel: str) -> bool:
    """Whether the module lies there, to be loaded."""
    return f"/{name}.ko" in _read(KERNEL_MODULES / kernel / "modules.dep")


def load_module(name: str, kernel: str, os_release: str | None = None) -> tuple[str, ...]:
    """How a module of the kernel comes to be there: loaded, or installed with its like first."""
    load = as_root(f"modprobe {name}")
    if has_module(name, kernel):
        return (load,)
    if not (KERNEL_MODULES / kernel / "modules.dep").exists():
        where = f"another kernel: {kernel} has no modules to load here"
        return f"{load}     outside, where this is a container", where
    words = _distribution(_read(OS_RELEASE) if os_release is None else os_release)
    if words[:1] == ["debian"]:
        image = as_root("apt-get install linux-image-$(dpkg --print-architecture)")
        return (f"{image}     then start that kernel",)
    apt, dnf = (as_root(command) for command in ("apt-get install", "dnf install"))
    with_apt, with_dnf = f"{apt} {_MODULES.debian} && {load}", f"{dnf} {_MODULES.fedora} && {load}"
    return _of_family(words, with_apt, with_dnf)


def as_root(command: str) -> str:
    return command if os.geteuid() == 0 else f"sudo {command}"


def compose_commands() -> tuple[str, ...]:
    """What installs Compose v2: its package is called otherwise on each system."""
    return (
        f"{as_root('apt-get install docker-compose-v2')}     on Ubuntu",
        f"{as_root('apt-get install docker-compose')}     on Debian 13 and newer",
        f"{as_root('dnf install docker-compose')}     on Fedora",
    )


def _distribution(os_release: str) -> list[str]:
    """ID and ID_LIKE, the most exact word first: `ubuntu debian`."""
    found = re.findall(r"^ID(?:_LIKE)?=\"?([^\"\n]*)", os_release, re.MULTILINE)
    return [word for line in sorted(found, key=lambda line: " " in line) for word in line.split()]


def _of_family(words: Iterable[str], apt: str, dnf: str) -> tuple[str, ...]:
    """The one that fits this distribution; both, each with its place, where neither is known to."""
    known = [_COMMANDS[word] for word in words if word in _COMMANDS]
    if not known:
        return f"{apt}     on Debian or Ubuntu", f"{dnf}     on Fedora"
    return (apt if known[0] == "apt" else dnf,)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
