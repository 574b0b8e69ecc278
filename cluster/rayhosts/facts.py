"""What one node says about itself: software, kernel, NICs. One file, standard library only.

Actors run its text with their node's own interpreter, where no package of ours need be there.
"""

import array
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import ipaddress
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("cluster", "ddp", "jobs")
MOST_NICS = 256
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40


def facts() -> dict[str, Any]:
    """Plain data; what is not installed, or cannot be told, is null."""
    found = folder()
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "ray": version("ray"),
        "ddplab": None if found is None else version("ddplab") or "a checkout",
        "sources": None if found is None else sources(found),
        "folder": found,
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "nics": nics(),
        "routes": routes(),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def folder() -> str | None:
    """Where `cluster` and its siblings are imported from."""
    specs = [importlib.util.find_spec(package) for package in PACKAGES]
    origins = {str(Path(spec.origin).parent.parent) for spec in specs if spec and spec.origin}
    return origins.pop() if len(origins) == 1 and all(specs) else None


def sources(found: str) -> str:
    """A digest of the text of our packages, wherever they are installed."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((Path(found) / package).rglob("*.py")):
            digest.update(f"{file.relative_to(found).as_posix()}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def nics() -> list[list[str]]:
    """Interface and IPv4 address, as the kernel lists them."""
    room = array.array("B", bytes(MOST_NICS * _IFREQ_BYTES))
    address, length = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iL", length, address))
    used = struct.unpack("iL", answer)[0]
    entries = [room[at : at + _IFREQ_BYTES].tobytes() for at in range(0, used, _IFREQ_BYTES)]
    return [
        [entry[:16].split(b"\0")[0].decode(), str(ipaddress.IPv4Address(entry[20:24]))]
        for entry in entries
    ]


def routes() -> list[Any]:
    """Routes as iproute2 lists them; none where it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    ip = shutil.which("ip", path=path)
    if ip is None:
        return []
    done = subprocess.run([ip, "-j", "route", "show"], capture_output=True, check=False)
    try:
        listed: list[Any] = json.loads(done.stdout or b"[]")
    except ValueError:
        return []
    return listed


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts()))
