"""Gets the packages of the image with this machine's own pip, so that the build asks no index.

So pip's settings here hold (indexes, certificates, proxies, what lies on the disk or in its cache),
and no part of them can get into the image. Knows nothing of images: see cluster.compose.image.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cluster.descendants import end_with_parent
from cluster.errors import HostError

TORCH_INDEX_URL = "https://download.pytorch.org/whl/cpu"
TIMEOUT_S = 1800.0
OLDEST_GLIBC = 17
"""Wheels for glibc 2.17 and newer: none older are made any more."""


@dataclass(frozen=True)
class Target:
    """The Python that the wheels are for, and the system it runs on."""

    python: tuple[int, int]
    machine: str
    """As `uname -m` says: x86_64, aarch64."""
    glibc: tuple[int, int]

    def options(self) -> list[str]:
        """Says to pip what can be installed there."""
        words = ["--only-binary=:all:", "--implementation=cp"]
        words += ["--python-version={}.{}".format(*self.python)]
        words += [
            f"--platform=manylinux_2_{minor}_{self.machine}"
            for minor in range(self.glibc[1], OLDEST_GLIBC - 1, -1)
        ]
        return [*words, f"--platform=manylinux2014_{self.machine}", "--platform=any"]


def collect(pins: Sequence[str], target: Target, folder: Path) -> None:
    """Puts the wheel of each pin into a folder. Raises HostError.

    torch comes from pip's own sources, or else from PyTorch's index of builds for CPUs.
    """
    if find_spec("pip") is None:
        raise HostError(
            "this Python has no pip",
            "the packages of the nodes' image are downloaded with pip",
            f"{sys.executable} -m ensurepip",
            seen=sys.executable,
        )
    torch = [pin for pin in pins if pin.startswith("torch==")]
    others = [pin for pin in pins if pin not in torch]
    words = [*target.options(), f"--dest={folder}"]
    failed = _download(words, torch)
    if failed is not None:
        failed = _download([*words, f"--index-url={TORCH_INDEX_URL}"], torch)
    if failed is None:
        failed = _download(words, others)
    if failed is not None:
        raise HostError(
            "the packages of the nodes' image could not be downloaded",
            f"torch comes from pip's own sources or from {TORCH_INDEX_URL}, all else from pip's "
            "own, each as pinned in constraints.txt",
            (
                "check the network and pip's settings: pip config list",
                "behind a mirror: PIP_EXTRA_INDEX_URL=... make cluster-up",
                "BACKEND=netns     needs no image",
            ),
            seen=failed,
        )


def _download(options: Sequence[str], pins: Sequence[str]) -> str | None:
    """None where pip got them all; else what it says."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--no-color", "--progress-bar=off", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *options, *pins],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
            timeout=TIMEOUT_S,
            check=False,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
    except subprocess.TimeoutExpired:
        return f"pip did not end within {TIMEOUT_S / 60:g} minutes"
    return telling(done.stderr) if done.returncode else None


def telling(text: str) -> str:
    """The lines of pip's that say why: the last lost connection and its errors, else its end."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lost = [line.partition("broken by ")[2] for line in lines if "Retrying (" in line]
    errors = [line for line in lines if line.startswith("ERROR:")]
    told = [*lost[-1:], *errors[-2:]] if errors else lines[-3:]
    return "; ".join(re.sub(r"(https?://)[^/@\s]+@", r"\1***@", line)[:300] for line in told)
